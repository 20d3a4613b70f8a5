"""Every forward pass of one repeat: its tokens, requests, events and the cache in use."""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import pandas as pd

from kvscope.base.quantities import plural
from kvscope.plan.figures import Axes
from kvscope.report import theme
from kvscope.report.data import ReportedRun, StudyData
from kvscope.report.figures.batch_composition import token_areas
from kvscope.report.figures.figure import (
    PAPER,
    Drawing,
    Figure,
    Spec,
    View,
    colours,
    constant,
    number,
    text,
)
from kvscope.report.figures.passes import (
    STEPS,
    TIME,
    merged_passes,
    passes,
    runs_with_passes,
    thin,
)
from kvscope.report.figures.spread import spread
from kvscope.tables.kv_use import token_share

# Above these limits a page opens and scrolls slowly; the page says what it leaves out.
MOST_EXPERIMENTS = 60
MOST_PASSES_A_REPEAT = 4000
MOST_PASSES_A_PAGE = 160_000
MOST_EVENTS_A_REPEAT = 4000
LABEL_PX = 96
WIDTH = PAPER - LABEL_PX

ALONG = {"time": "start_s", "forward pass": "step"}
EVENTS = {
    "preempted": (theme.PREEMPTED, "triangle-down"),
    "resumed": (theme.RESUMED, "triangle-up"),
    "stalled": (theme.STALLED, "cross"),
}
SHARES = {
    "blocks in use": ("blocks_percent", theme.KV_BLOCKS),
    "tokens held": ("tokens_percent", theme.KV_TOKENS),
    "host pool in use": ("host_percent", theme.HOST_BLOCKS),
}
REQUESTS = {
    "running": ("requests", theme.RUNNING),
    "waiting": ("waiting_requests", theme.WAITING),
}
DETAILS = {
    "name": "forward pass",
    "ms": "duration (ms)",
    "prefill_tokens": "prefill tokens",
    "decode_tokens": "decode tokens",
    "requests": "running requests",
    "waiting_requests": "waiting requests",
    "kv_blocks_used": "blocks in use",
    "kv_tokens_used": "tokens held",
    "host_blocks_used": "host blocks in use",
}


def draw(study: StudyData, axes: Sequence[Axes]) -> Drawing | None:
    """A view for each experiment and repeat, by time and by pass."""
    views = tuple(_views(study))
    if not views:
        return None
    shown = len({view.choice[0] for view in views})
    missing = len(runs_with_passes(study)) - shown
    remark = f"Timelines of {plural(missing, 'experiment')} are left out." if missing else ""
    return Drawing(views, ("Experiment", "Repeat", "Along"), LABEL_PX, (remark,) if remark else ())


def _views(study: StudyData) -> Iterator[View]:
    drawn = 0
    chart_of = cache(_chart)
    for run in spread(runs_with_passes(study), MOST_EXPERIMENTS):
        if drawn >= MOST_PASSES_A_PAGE:
            return
        for repeat in run.repeats:
            steps = run.steps(repeat)
            data = {"passes": pass_table(run, steps), "events": event_table(run, repeat)}
            drawn += len(data["passes"])
            note = _note(run, repeat, steps)
            pool = bool(steps["host_blocks_total"].any())
            tokens = bool(token_share(steps, 1).notna().any())
            for along, x in ALONG.items():
                chart = chart_of(x, pool, tokens)
                yield View(chart, data, (run.label, str(repeat), along), note)


def _chart(x: str, pool: bool, tokens: bool) -> Spec:
    """Tokens, events, requests and shares over one axis, and a strip to choose a part of it.

    Without a host pool, or where the tokens held were not recorded, their shares have no line.
    """
    title = TIME if x == "start_s" else "forward pass"
    scale = {"domain": {"param": "zoom"}, "nice": False, "zero": False}
    hidden = number(
        x,
        title=None,
        scale=scale,
        axis={"labels": False, "ticks": False, "grid": True, "tickCount": 10},
    )
    last = number(x, title=title, scale=scale, axis={"grid": True, "tickCount": 10})
    shown = {"blocks_percent": True, "tokens_percent": tokens, "host_percent": pool}
    shares = {name: share for name, share in SHARES.items() if shown[share[0]]}
    percent = {"scale": {"domain": [0, 106]}, "axis": {"values": [0, 50, 100]}}
    details = _details(x)
    rows = [
        _row(170, hidden, [*token_areas("tokens a pass", "top"), details]),
        _row(54, hidden, [details, _events()]),  # details: else its axis ends with the events
        _row(90, hidden, [*_steps(REQUESTS, "requests", {}), details]),
        _row(110, last, [*_steps(shares, "share in use (%)", percent), details]),
        _strip(x),
    ]
    return {
        "data": {"name": "passes"},
        "vconcat": rows,
        "spacing": 8,
        "resolve": {"scale": {"color": "independent", "shape": "independent"}},
    }


def _row(height: int, x: Spec, layers: list[Spec]) -> Spec:
    return {"width": WIDTH, "height": height, "encoding": {"x": x}, "layer": layers}


def _steps(lines: dict[str, tuple[str, str]], title: str, y: Spec) -> list[Spec]:
    scale = colours(list(lines), [hue for _, hue in lines.values()])
    look = {"scale": scale, "legend": {"orient": "top", "offset": 0}}
    return [
        {
            "mark": {"type": "line", "strokeWidth": 1.4, **STEPS},
            "encoding": {"y": number(column, title=title, **y), "color": constant(name, **look)},
        }
        for name, (column, _) in lines.items()
    ]


def _details(x: str) -> Spec:
    """Tooltip of a pass, over the whole height."""
    tooltip = [
        text(name, title=title) if name == "name" else number(name, title=title, format=",.4~g")
        for name, title in DETAILS.items()
    ]
    end = {"field": "end_s" if x == "start_s" else "step_end"}
    mark = {"type": "rect", "opacity": 0, "clip": True}
    return {"mark": mark, "encoding": {"x2": end, "tooltip": tooltip}}


def _events() -> Spec:
    names = list(EVENTS)
    hues, shapes = zip(*EVENTS.values(), strict=True)
    scale = {"domain": names}
    return {
        "data": {"name": "events"},
        "mark": {"type": "point", "filled": True, "size": 38, "clip": True, "opacity": 0.85},
        "encoding": {
            "y": text("event", title=None, scale=scale, axis={"grid": True}),
            "shape": text("event", scale={**scale, "range": shapes}, legend=None),
            "color": text("event", scale=colours(names, hues), legend=None),
            "tooltip": [text("text", title="event"), number("step", title="pass")],
        },
    }


def _strip(x: str) -> Spec:
    return {
        "width": WIDTH,
        "height": 34,
        "params": [{"name": "zoom", "select": {"type": "interval", "encodings": ["x"]}}],
        "mark": {"type": "area", "color": theme.KV_BLOCKS, "opacity": 0.5, **STEPS},
        "encoding": {
            "x": number(x, title=None, scale={"nice": False, "zero": False}, axis=None),
            "y": number("blocks_percent", title=None, axis=None),
        },
    }


def pass_table(run: ReportedRun, steps: pd.DataFrame) -> pd.DataFrame:
    """A row for each pass (or several merged passes), and for each time in which nothing ran."""
    shown = passes(thin(steps, MOST_PASSES_A_REPEAT))
    total, pool = int(steps["kv_blocks_total"].max()), int(steps["host_blocks_total"].max())
    first, last = shown["step"].astype(int), shown["last_step"].astype(int)
    names = first.astype(str) + (" to " + last.astype(str)).where(last > first, "")
    share = {
        "blocks_percent": shown["kv_blocks_used"] / total,
        "tokens_percent": token_share(shown, run.records.block_size),
    }
    share |= {"host_percent": shown["host_blocks_used"] / pool} if pool else {}
    counts = [
        "requests",
        "waiting_requests",
        "kv_blocks_used",
        "kv_tokens_used",
        "host_blocks_used",
    ]
    tokens = {name: shown[f"{name}_tokens"].round(1) for name in ("prefill", "decode")}
    return pd.DataFrame(
        {
            "start_s": shown["start_s"].round(6),
            "end_s": shown["end_s"].round(6),
            "step": first,
            "step_end": last + 1,
            "name": names,
            "ms": (1e3 * (shown["end_s"] - shown["start_s"])).round(3),
            "decode": tokens["decode"],
            "tokens": tokens["decode"] + tokens["prefill"],
            **{f"{name}_tokens": values for name, values in tokens.items()},
            **{name: shown[name] for name in counts},
            **{name: (100 * values).round(2) for name, values in share.items()},
        }
    )


def event_table(run: ReportedRun, repeat: int) -> pd.DataFrame:
    """A row a preemption, a resumption or a stalled pass, with what happened in words."""
    steps = run.steps(repeat)
    start = steps.set_index("step")["start_s"].round(6)
    events = run.preemptions(repeat).head(MOST_EVENTS_A_REPEAT).to_dict("records")
    rows = [(row["step"], *_words(row)) for row in events]
    rows += [(step, "stalled", "stalled pass") for step in steps.loc[steps["stalled"], "step"]]
    frame = pd.DataFrame(rows, columns=["step", "event", "text"])
    return frame.assign(start_s=frame["step"].map(start))


def _words(row: dict[Any, Any]) -> tuple[str, str]:
    """Event of a request, as a word and as a phrase."""
    word = {"preempt": "preempted", "resume": "resumed"}[row["event"]]
    tokens = plural(int(row["tokens"]), "token")
    return word, f"request {row['request_id']} {word}: {row['policy']} of {tokens}"


def _note(run: ReportedRun, repeat: int, steps: pd.DataFrame) -> str:
    events = run.preemptions(repeat)["event"]
    end = (steps["start_s"] + steps["duration_s"]).max()
    total = int(steps["kv_blocks_total"].max())
    parts = [
        f"{plural(len(steps), 'pass')} in {end:.2f} s",
        plural(int((events == "preempt").sum()), "preemption"),
        plural(int((events == "resume").sum()), "resumption"),
        plural(int(steps["stalled"].sum()), "stalled pass"),
        f"capacity {plural(total, 'block')}",
    ]
    if (size := run.records.block_size) and steps["group_blocks_used"].isna().all():
        parts[-1] += f", {plural(total * size, 'token')}"
    if steps["kv_tokens_used"].isna().all():
        parts.append("tokens held: not recorded")
    if (merged := merged_passes(len(steps), MOST_PASSES_A_REPEAT)) > 1:
        parts.append(
            f"up to {merged} passes are drawn as one: the mean of their tokens, the largest of "
            "the rest"
        )
    if len(events) > MOST_EVENTS_A_REPEAT:
        parts.append(f"events shown: the first {MOST_EVENTS_A_REPEAT:,}")
    return f"{'; '.join(parts)}."


FIGURE = Figure(
    "Step timelines",
    "Every forward pass of one repeat: its tokens, preemptions and resumptions, requests, and the "
    "cache in use. Drag in the strip below to zoom all rows, double-click to reset.",
    draw,
    order=210,
)

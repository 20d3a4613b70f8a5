"""KV cache and host pool in use during a repeat, with preemptions and resumptions."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from kvscope.plan.figures import Axes
from kvscope.report import theme
from kvscope.report.data import ReportedRun, StudyData
from kvscope.report.figures.figure import Drawing, Figure, Spec, colours, constant, number, text
from kvscope.report.figures.passes import STEPS, multiples, shown_runs
from kvscope.tables.kv_use import token_share

MOST_MARKS = 400
LINES = {
    "blocks in use": ("blocks", theme.KV_BLOCKS),
    "tokens held": ("tokens", theme.KV_TOKENS),
    "host pool in use": ("host", theme.HOST_BLOCKS),
}
# Events: their heights above the line of 100 %, and how they look.
MARKS = {
    "preempted": (116, theme.PREEMPTED, "triangle-down"),
    "resumed": (108, theme.RESUMED, "triangle-up"),
}
EVENTS = {"preempt": "preempted", "resume": "resumed"}


def draw(study: StudyData, axes: Sequence[Axes]) -> Drawing | None:
    """Blocks and tokens in use over time, an experiment a facet."""
    runs = shown_runs(study)
    passes = [run.steps(run.repeats[0]) for run in runs]
    absent = set()
    if not any(steps["host_blocks_total"].any() for steps in passes):
        absent.add("host")
    shares = (token_share(steps, 1) for steps in passes)
    if not any(share.notna().any() for share in shares):
        absent.add("tokens")
    lines = {name: line for name, line in LINES.items() if line[0] not in absent}
    shown = MARKS if any(not marks(run).empty for run in runs) else {}
    hues = [*(hue for _, hue in lines.values()), *(hue for _, hue, _ in shown.values())]
    scale = colours([*lines, *shown], hues)
    y: Spec = {
        "title": "share in use (%)",
        "scale": {"domain": [0, 120 if shown else 105]},
        "axis": {"values": [0, 25, 50, 75, 100]},
    }
    layers: list[Spec] = [
        {
            "transform": [{"filter": f"isValid(datum.{column})"}],
            "mark": {"type": "line", "strokeWidth": 1.3} | STEPS,
            "encoding": {"y": number(column, **y), "color": constant(name, scale=scale)},
        }
        for name, (column, _) in lines.items()
    ]
    layers += [
        {
            "transform": [{"filter": f"datum.event == '{name}'"}],
            "mark": {"type": "point", "filled": True, "size": 22, "shape": shape, "opacity": 0.85},
            "encoding": {
                "y": {"datum": height, "type": "quantitative"},
                "color": constant(name, scale=scale),
                "tooltip": [text("event"), number("start_s", title="at (s)")],
            },
        }
        for name, (height, _, shape) in shown.items()
    ]
    return multiples(study, _shares, layers, marks if shown else None)


def _shares(run: ReportedRun, steps: pd.DataFrame) -> dict[str, Any]:
    total = steps["kv_blocks_total"]
    shares = {
        "blocks": steps["kv_blocks_used"] / total,
        "tokens": token_share(steps, run.records.block_size),
    }
    if steps["host_blocks_total"].any():
        shares["host"] = steps["host_blocks_used"] / steps["host_blocks_total"].max()
    return {name: (100 * share).round(2) for name, share in shares.items()}


def marks(run: ReportedRun) -> pd.DataFrame:
    """When the passes of the first repeat began that preempted or resumed requests."""
    repeat = run.repeats[0]
    start = run.steps(repeat).set_index("step")["start_s"].round(5)
    events = run.preemptions(repeat)[["step", "event"]].drop_duplicates().head(MOST_MARKS)
    timed = events.assign(start_s=events["step"].map(start), event=events["event"].map(EVENTS))
    return timed[["start_s", "event"]].dropna()


FIGURE = Figure(
    "KV cache utilization over time",
    "The first repeat of each experiment: blocks of the KV cache in use, and of the host pool "
    "where there is one. Triangles above: passes that preempted (down) or resumed requests (up).",
    draw,
    order=150,
)

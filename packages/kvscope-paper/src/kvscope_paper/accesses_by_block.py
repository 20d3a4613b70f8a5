"""Figure 6: blocks of the KV cache that each request writes and reads, pass by pass.

A row of plots for what was published and one for each experiment; a plot for each forward pass,
F1 to F5, whose time axes break off between them. Requests are R1 to R4, as in the paper.
"""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pandas as pd

from kvscope.api.figures import charts, theme
from kvscope.api.sections import StudyData
from kvscope.api.wording import traits
from kvscope_kernels import kv_events
from kvscope_kernels.analyse import events as traced
from kvscope_kernels.analyse.access import KvTrace, trace_to_draw
from kvscope_paper.arrays import Bools
from kvscope_paper.comparison import device_words
from kvscope_paper.published.trace import KEYS, TOO_LONG, published_accesses
from kvscope_paper.series_look import remark_lines

PASSES = 5
MOST_RUNS = 3
MICROSECONDS = 1e-3  # in a nanosecond
AXIS_PX, GAP_PX, HEIGHT = 64, 12, 150
WIDTH = (charts.PAPER - AXIS_PX - GAP_PX * (PASSES - 1)) // PASSES
SHORTEST = 0.02  # of an axis: what is shorter could not be seen
REQUESTS = ("R1", "R2", "R3", "R4")
KINDS_OF = {"writes": ("k_write", "v_write"), "reads": ("k_read", "v_read")}
UNITS = f"Times as published are cycles over 210, taken for µs of 210 MHz: too long by {TOO_LONG}."
REMARKS = {
    "writes": (
        UNITS,
        "No start of a write was measured: published ones begin at the host's launch, K and V of a "
        "token share one duration.",
        "Of the published trace, F1 and F2 are shown.",
    ),
    "reads": (
        UNITS,
        "Published reads begin as their own thread block counts; 15.8 % of those of V were lost, "
        "all of R4; those of F1 were not traced. Of the published trace, F2 and F3 are shown.",
        "Ours: one KV head; in F1 attention reads the blocks that it has just written.",
    ),
}
PUBLISHED = "published"


def draw(what: str, study: StudyData, _: str) -> charts.Drawing | None:
    """Plots of the `writes` or the `reads`; of the published ones alone, if no run was traced.

    None without experiments.
    """
    if not study.runs:
        return None
    rows = [(PUBLISHED, published_accesses()), *_ours(study)]
    plots: list[charts.Spec] = []
    data: dict[str, pd.DataFrame] = {}
    for title, accesses in rows:
        shown = accesses[accesses["kind"].isin(KINDS_OF[what])]
        if shown.empty:
            continue
        cells = []
        for place in range(1, PASSES + 1):
            name = f"row{len(plots)}pass{place}"
            data[name] = _bars(shown[shown["pass"] == place])
            cells.append(_chart(name, data[name], shown, place, title))
        plots.append({"hconcat": cells, "bounds": "flush", "spacing": GAP_PX})
    return charts.Drawing(
        (charts.View({"vconcat": plots, "spacing": 14}, data),),
        remarks=remark_lines(REMARKS[what], charts.PAPER),
    )


DRAW: dict[str, Callable[[StudyData, str], charts.Drawing | None]] = {
    what: partial(draw, what) for what in KINDS_OF
}


def _ours(study: StudyData) -> Iterator[tuple[str, pd.DataFrame]]:
    """The accesses of each experiment that was traced, under its device."""
    traces = ((run, trace_to_draw(run)) for run in study.runs if run.repeats)
    for run, trace in [(run, trace) for run, trace in traces if trace][:MOST_RUNS]:
        title = f"ours, {device_words(dict(traits.flat(run.settings)))}"
        yield title, accesses_of(trace.of_repeat(run.repeats[0]))


def accesses_of(trace: KvTrace) -> pd.DataFrame:
    """Accesses of the first traced layer and head, in the columns of `traced_accesses`.

    Times are in µs since the layer's first access of the pass.
    """
    parts = traced.traced_parts(trace.path, trace.repeat)
    steps = parts["step"].unique()[:PASSES].tolist()
    events = traced.read_events(trace.path, trace.repeat, steps, [int(parts["layer"].min())])
    events = events.take(_of_first_head(events))
    names = sorted(events.requests, key=lambda name: (len(name), name))
    rows = pd.DataFrame(
        {
            "pass": events.step,
            "kind": np.array(kv_events.KINDS)[events.kind],
            "request": [names.index(events.requests[n]) + 1 for n in events.request],
            "block": events.block,
            "start": events.start_ns * MICROSECONDS,
            "end": events.end_ns * MICROSECONDS,
        }
    )
    begun = rows.groupby("pass")["start"].transform("min")
    rows[["start", "end"]] = rows[["start", "end"]].sub(begun, axis=0)
    rows["pass"] = rows["pass"].map({step: place for place, step in enumerate(steps, start=1)})
    merged = rows.groupby(KEYS, sort=False, as_index=False).agg({"start": "min", "end": "max"})
    return merged.assign(duration=merged["end"] - merged["start"]).drop(columns="end")


def _of_first_head(events: traced.Events) -> Bools:
    """Events of requests, of each kind those of its first head."""
    of_first_head = np.zeros(len(events), bool)
    for kind in np.unique(events.kind):
        of_kind = events.kind == kind
        of_first_head |= of_kind & (events.kv_head == events.kv_head[of_kind].min())
    return of_first_head & (events.request >= 0)


def _bars(accesses: pd.DataFrame) -> pd.DataFrame:
    """A bar an access, wide enough to be seen."""
    ends = accesses["start"] + accesses["duration"]
    shortest = SHORTEST * float(ends.max()) if len(accesses) else 0.0
    return pd.DataFrame(
        {
            "request": "R" + accesses["request"].astype(str),
            "tensor": accesses["kind"].str[0].str.upper(),
            "start": accesses["start"].round(4),
            "end": ends.where(accesses["duration"] > shortest, accesses["start"] + shortest).round(
                4
            ),
            "bottom": accesses["block"] - 0.5,
            "top": accesses["block"] + 0.5,
        }
    )


def _chart(name: str, bars: pd.DataFrame, row: pd.DataFrame, place: int, title: str) -> charts.Spec:
    size = {"width": WIDTH, "height": HEIGHT}
    above = {"text": f"F{place}", "fontWeight": "normal", "offset": 4, "anchor": "middle"}
    low, high = int(row["block"].min()), int(row["block"].max())
    words = [title, "Block (chunk) ID"] if place == 1 else None
    y = {
        "scale": {"domain": [low - 1.5, high + 1.5], "nice": False, "zero": False},
        "axis": {"labels": place == 1, "ticks": False, "tickCount": 5, "title": words},
    }
    if bars.empty:
        middle = {"datum": (low + high) / 2, "type": "quantitative", **y}
        blank = {"mark": {"type": "text", "text": "not shown"}, "encoding": {"y": middle}}
        return {"data": {"values": [{}]}, "title": above, **size, **blank}
    unit = "µs as published" if title == PUBLISHED else "µs"
    return {
        "data": {"name": name},
        "title": above,
        **size,
        "mark": {"type": "rect", "clip": True},
        "encoding": {
            "x": charts.number(
                "start",
                title=f"Time ({unit})",
                scale={"domain": [0, float(bars["end"].max()) or 1], "nice": False},
                axis={"tickCount": 3, "format": charts.NUMBER, "labelFlush": True},
            ),
            "x2": {"field": "end"},
            "y": charts.number("bottom", **y),
            "y2": {"field": "top"},
            "color": charts.text(
                "request", scale={"domain": [*REQUESTS], "range": [*theme.PALETTE[:4]]}
            ),
            "opacity": charts.text(
                "tensor", scale={"type": "ordinal", "domain": ["K", "V"], "range": [1, 0.4]}
            ),
        },
    }

"""Every access to the KV cache in one forward pass and layer."""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from kvscope.api.figures import Axes, charts
from kvscope.api.sections import ReportedRun, StudyData, section
from kvscope.api.words import quantities
from kvscope_kernels.analyse.access import KvTrace
from kvscope_kernels.analyse.events import phases_of, read_events, traced_parts
from kvscope_kernels.figures.accesses import (
    access_chart,
    access_table,
    clock_note,
    lane_height,
    request_axis,
    stack_of,
    traced_runs,
)

# Above these limits a page is slow; it says what it leaves out.
MOST_EVENTS_A_PAGE = 120_000
MOST_EVENTS = 20_000  # of a pass and layer
MOST_EXPERIMENTS = 6
FEWEST_PASSES = 5  # rather some of the layers than fewer passes
LABEL_PX = 150


def draw(study: StudyData, axes: Sequence[Axes]) -> charts.Drawing | None:
    """A view for each experiment, layer and forward pass, by request and by block number."""
    runs = traced_runs(study)
    shown = runs[:MOST_EXPERIMENTS]
    views = [view for place in shown for view in _views(*place, MOST_EVENTS_A_PAGE // len(shown))]
    if not views:
        return None
    left = len(runs) - len(shown)
    remarks = (
        (f"Accesses of {quantities.plural(left, 'more traced experiment')} are left out.",)
        if left
        else ()
    )
    headings = ("Experiment", "Layer", "Forward pass", "Blocks")
    return charts.Drawing(tuple(views), headings, LABEL_PX, remarks)


def _views(run: ReportedRun, trace: KvTrace, most_events: int) -> Iterator[charts.View]:
    path, repeat = trace.path, trace.repeat
    parts = traced_parts(path, repeat)
    passes, layers = passes_and_layers(parts, most_events)
    phases = phases_of(parts)
    events = read_events(path, repeat, passes, layers)
    events = events.take(np.argsort(events.start_ns, kind="stable"))
    stack = stack_of(events)
    requests = dict.fromkeys(events.requests[n] for n in stack.order)
    title = f"time since the first access of the pass in this layer (µs{clock_note(run)})"
    x = {"title": title, "scale": {"zero": False, "nice": False}, "axis": {"format": charts.NUMBER}}
    of_cache = {"title": "block of the KV cache (number)", "axis": {"grid": True}}
    of_request = {"title": None, "axis": request_axis(stack)}
    height = lane_height(events)
    plots = {
        "by request": _chart(access_chart(stack, height, x, of_request)),
        "by number": _chart(access_chart(stack, height, x, of_cache, physical=True)),
    }
    for layer in layers:
        for step in passes:
            shown = events.take((events.step == step) & (events.layer == layer))
            if not len(shown):
                continue
            kept = shown.take(slice(0, MOST_EVENTS))
            data = {"accesses": access_table(kept, int(kept.start_ns[0]))}
            note = (
                f"{quantities.plural(len(kept), 'access')} of "
                f"{quantities.plural(len(requests), 'request')}; this page has {len(passes)} of"
                f" {parts['step'].nunique()} traced passes and {len(layers)} "
                f"of {parts['layer'].nunique()} layers of repeat {repeat}."
            )
            for blocks, chart in plots.items():
                choice = (run.label, str(layer), f"{step} ({phases[step]})", blocks)
                yield charts.View(chart, data, choice, note)


def _chart(chart: charts.Spec) -> charts.Spec:
    """The chart in full width: a drag moves it, the wheel with Ctrl or Cmd zooms."""
    picked = {"type": "point", "fields": ["request"]}
    moved = {"type": "interval", "zoom": "wheel![event.ctrlKey || event.metaKey]"}
    return {
        **chart,
        "data": {"name": "accesses"},
        "width": charts.PAPER - LABEL_PX,
        "height": 480,
        "params": [
            {"name": "picked", "select": picked, "bind": "legend"},
            {"name": "zoom", "select": moved, "bind": "scales"},
        ],
        "transform": [*chart["transform"], {"filter": {"param": "picked"}}],
    }


def passes_and_layers(parts: pd.DataFrame, most_events: int) -> tuple[list[int], list[int]]:
    """Passes and layers to show: whole passes from the first on, at least one.

    All layers if FEWEST_PASSES fit so; otherwise the first and the last, or the first alone.
    """
    layers = sorted(int(layer) for layer in parts["layer"].unique())
    for some in (layers, [layers[0], layers[-1]], layers[:1]):
        chosen = list(dict.fromkeys(some))
        sizes = parts[parts["layer"].isin(chosen)].groupby("step")["events"].sum().cumsum()
        fitting = [int(step) for step in sizes.index[sizes <= most_events]]
        if len(fitting) >= min(FEWEST_PASSES, len(sizes)):
            break
    return fitting or [int(sizes.index[0])], chosen


FIGURE = charts.Figure(
    "KV accesses",
    "Single accesses of attention kernels to blocks of the KV cache, from their start to their "
    "end: K in the upper half of a block's height, V (paler) in the lower half, each KV head on a "
    "line of its own. Drag to move, Ctrl and wheel to zoom, double-click to reset; click a request "
    "in the legend to show it alone.",
    draw,
    order=230,
)
SECTION = section.Section(FIGURE.title, order=530, figure="kv_accesses")

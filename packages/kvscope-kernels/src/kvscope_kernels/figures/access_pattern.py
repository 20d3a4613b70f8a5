"""Blocks that attention writes and reads over time, in the first forward passes of a repeat."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from kvscope.api.figures import Axes, charts
from kvscope.api.sections import StudyData
from kvscope_kernels.analyse.access import KvTrace
from kvscope_kernels.analyse.events import Events, phases_of, read_events, traced_parts
from kvscope_kernels.figures.accesses import (
    access_chart,
    access_table,
    clock_note,
    lane_height,
    stack_of,
    traced_runs,
)

MOST_RUNS = 3
MOST_PASSES = 5
MOST_EVENTS = 600  # in one plot
MILLISECOND = 1e-6
SHORTEST = 0.012  # of the axis: what is shorter could not be seen
HEIGHTS = {"writes": 70, "reads": 150}
LABEL_PX = 30
X_SCALE = {"zero": False, "nice": False, "padding": 2}
X_AXIS = {"tickCount": 2, "format": charts.NUMBER, "labelFlush": True}


def draw(study: StudyData, axes: Sequence[Axes]) -> charts.Drawing | None:
    """For each experiment and layer a row of its writes and one of its reads, a column a pass."""
    runs = traced_runs(study)[:MOST_RUNS]
    parts = [
        (run, *part) for run, trace in runs for part in _parts(trace, 2 if len(runs) == 1 else 1)
    ]
    if not parts:
        return None
    columns = max(len(passes) for _, _, passes, _ in parts)
    width = charts.plot_width(columns, LABEL_PX)
    cells: list[charts.Spec] = []
    data: dict[str, pd.DataFrame] = {}
    share = 1
    for run, layer, passes, events in parts:
        stack, first_ns = stack_of(events), int(events.start_ns.min())
        for what, height in HEIGHTS.items():
            for step, phase in passes.items():
                shown = events.take((events.step == step) & (events.reads == (what == "reads")))
                every = max(1, -(-len(shown) // MOST_EVENTS))
                share = max(share, every)
                start_ns = int(shown.start_ns.min()) if len(shown) else first_ns
                name = f"cell{len(cells)}"
                data[name] = access_table(shown.take(slice(None, None, every)), start_ns)
                words = [run.label] if len(runs) > 1 else []
                words += [f"layer {layer}, pass {step} ({phase})"]
                words += [f"from {MILLISECOND * (start_ns - first_ns):.3f} ms on"]
                x = {"title": f"time (µs{clock_note(run)})", "scale": X_SCALE, "axis": X_AXIS}
                chart = access_chart(
                    stack, lane_height(events), x, {"axis": None}, shortest_us=_shortest(data[name])
                )
                title = {"text": what, "subtitle": words}
                size = {"width": width, "height": height, "title": title}
                cells.append({"data": {"name": name}, **size, **chart})
    remarks = ["K: upper half of a block, V: lower half, paler"]
    if share > 1:
        remarks.append(f"up to {share} accesses are drawn as one")
    return charts.Drawing(
        (charts.View(charts.grid(cells, columns), data),), (), LABEL_PX, tuple(remarks)
    )


def _shortest(frame: pd.DataFrame) -> float:
    """The shortest access that can be seen, in µs."""
    end = (frame["start"] + frame["ns"] / 1000).max()
    return 0.0 if frame.empty else round(SHORTEST * float(end - frame["start"].min()), 4)


def _parts(trace: KvTrace, most_layers: int) -> list[tuple[int, dict[int, str], Events]]:
    """Layers (the first, and the last if two are wanted), passes with phases, and events."""
    path, repeat = trace.path, trace.repeat
    parts = traced_parts(path, repeat)
    passes = dict(list(phases_of(parts).items())[:MOST_PASSES])
    layers = np.unique(parts["layer"])
    events = read_events(path, repeat, passes, {int(layers[0]), int(layers[-1])})
    return [
        (layer, passes, events.take(events.layer == layer))
        for layer in sorted({int(layers[0]), int(layers[-1])})[:most_layers]
    ]


FIGURE = charts.Figure(
    "Accesses to the KV cache",
    f"The first {MOST_PASSES} traced forward passes of the first repeat: each bar is one access "
    "of an attention kernel to one block, from its start to its end; short accesses are drawn "
    "longer, so that they are visible. Blocks are stacked in the order of their position in the "
    "request, requests by their number, each in its colour. Each plot has its own scale. Of more "
    f"than {MOST_EVENTS:,} accesses in one plot, an even sample is drawn.",
    draw,
    order=170,
)

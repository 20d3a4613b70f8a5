"""Cost of one preemption by strategy, against the tokens that were evicted."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from kvscope.plan.figures import Axes
from kvscope.plan.traits import setting_words
from kvscope.report.axes import PlacesOfKey, rows
from kvscope.report.data import ReportedRun, StudyData
from kvscope.report.figures.figure import (
    MANY,
    NUMBER,
    PICKED,
    ROW_EACH,
    Drawing,
    Figure,
    Spec,
    View,
    colour_channel,
    first_plots,
    grid,
    heading,
    number,
    plot_width,
    text,
    widen_covered,
)
from kvscope.report.figures.spread import SMALL, some_of, spread

HEIGHT, LABEL_PX = 170, 62
MOST_PLOTS = 48
MOST_READ = 120  # experiments of a large study whose preemptions are read
LEAST_PLACES = 2  # evicted tokens that differ: fewer are no line


def resumptions(run: ReportedRun) -> pd.DataFrame:
    """Resumptions whose cost was recorded, in repeats whose times count."""
    if not run.has_passes:
        return pd.DataFrame()
    events = run.records.preemptions
    events = events[events["repeat"].isin(run.timed)]
    return events[(events["event"] == "resume") & events["cost_s"].notna()]


def draw(study: StudyData, axes: Sequence[Axes]) -> Drawing | None:
    """A plot for each facet, a line for each strategy; a point an experiment."""
    preempting = [run for run in study.complete if run.number("preemptions").value > 0]
    chosen = study.complete if len(study.complete) <= SMALL else spread(preempting, MOST_READ)
    costs = {run.id: cost for run in chosen if (cost := _cost(run))}
    cells: list[Spec] = []
    data: dict[str, pd.DataFrame] = {}
    shown = rows(study, lambda run: run.id in costs, study.axes_of(axes)) if costs else []
    for row in shown:
        for facet in row.facets:
            points = pd.DataFrame(
                {"experiment": place.run.label, "colour": place.colour, **costs[place.run.id]}
                for place in row.of_facet(facet)
            )
            if points["tokens"].nunique() < LEAST_PLACES:
                continue
            name = f"cell{len(cells)}"
            colours = list(dict.fromkeys(points["colour"]))
            data[name] = widen_covered(points, "tokens", "cost_ms")
            width = plot_width(min(2, len(row.facets)), LABEL_PX)
            cells.append(_cell(name, _conditions(row, facet), colours, width, len(points) <= MANY))
    if not cells:
        return None
    kept, data, left_out = first_plots(cells, data, MOST_PLOTS)
    remarks = (
        *(some_of(len(chosen), len(preempting)) if chosen != study.complete else ()),
        *left_out,
    )
    view = View(grid(kept, 2, "colour"), data, remarks=remarks)
    return Drawing((view,), label_px=LABEL_PX)


def _conditions(row: PlacesOfKey, facet: str) -> str:
    """The model, the device and the facet of a plot, as far as its experiments share them."""
    runs = [place.run for place in row.of_facet(facet)]
    words = []
    for key in ("model", "device", "device.hardware"):
        values = {run.flat.get(key) for run in runs}
        if len(values) == 1 and (value := values.pop()) is not None:
            words.append(setting_words(key, value))
    return ", ".join(dict.fromkeys([*words, facet] if facet else words))


def _cost(run: ReportedRun) -> dict[str, Any] | None:
    """Mean tokens and cost of a run's resumptions; None without any."""
    events = resumptions(run)
    if events.empty:
        return None
    return {
        "tokens": float(events["tokens"].mean()),
        "cost_ms": 1e3 * float(events["cost_s"].mean()),
        "resumptions": len(events),
    }


def _cell(data: str, facet: str, names: list[str], width: int, line: bool) -> Spec:
    tooltip = [
        text("experiment"),
        number("tokens", format=",.0f"),
        number("cost_ms", title="ms", format=".4~g"),
        number("resumptions"),
    ]
    scale = {"type": "log", "nice": False, "padding": 12}
    return {
        "data": {"name": data},
        **heading("Cost of a preemption (ms)", facet),
        "width": width,
        "height": HEIGHT,
        "encoding": {
            "x": number("tokens", title="evicted tokens", scale=scale, axis={"format": NUMBER}),
            "y": number("cost_ms", title=None, scale=scale, axis={"format": NUMBER}),
            "color": colour_channel(names),
            "opacity": PICKED,
            "tooltip": tooltip,
        },
        "layer": [
            *([{"mark": "line"}] if line else []),
            {
                "mark": {"type": "point", "filled": True},
                "encoding": {"size": number("size", scale=None, legend=None)},
            },
        ],
    }


FIGURE = Figure(
    "Resume time by evicted tokens",
    "What a preemption cost, mean of an experiment: copies out and in, rebuilding of K and V, and "
    "of the passes that computed its tokens again their part by tokens. Where strategies cost the "
    "same, the points that another one covers are wider, and show as rings around it.",
    draw,
    order=110,
    axes=ROW_EACH,
)

"""Throughput against latency, and the experiments on the Pareto front."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from kvscope.metrics.measure import Measure, measures
from kvscope.plan.figures import Axes
from kvscope.report import theme
from kvscope.report.axes import Place, PlacesOfKey, rows, x_words
from kvscope.report.data import ReportedRun, StudyData
from kvscope.report.figures.figure import (
    FIRST_AXES,
    LETTER,
    NUMBER,
    PICKED,
    Drawing,
    Figure,
    Spec,
    View,
    colour_channel,
    colours,
    grid,
    heading,
    number,
    plot_width,
    plots_left_out,
    shape_channel,
    text,
)
from kvscope.report.figures.spread import some_of, spread
from kvscope.report.words import (
    estimate_text,
)

THROUGHPUT = "throughput_tokens_per_s"
LATENCIES = ("ttft_mean_s", "itl_mean_s")
HEIGHT, LABEL_PX = 190, 62
MOST_FACETS = 40
NARROWEST = 180  # pixels of a plot on the page: names that fit there fit everywhere
NAME_PX = 10  # height of a name
POINT_PX = 4  # from a point's centre to its edge
# Where a name may stand beside its point, best first: alignment, and the offset of its anchor.
BESIDE = (("left", 6, -6), ("right", -6, -6), ("left", 6, 8), ("right", -6, 8))

Box = tuple[float, float, float, float]  # left, top, right, bottom in pixels


def draw(study: StudyData, axes: Sequence[Axes]) -> Drawing | None:
    """A plot for each facet and latency; a point an experiment, a line a colour."""
    counted = {run.id for run in study.counted if _known(run)}
    drawn = {run.id for run in spread([run for run in study.counted if run.id in counted])}
    row, *_ = rows(study, lambda run: run.id in counted, study.axes_of(axes))
    if len(row.places) < 2:
        return None
    cells: list[Spec] = []
    data: dict[str, pd.DataFrame] = {}
    for facet in row.facets[:MOST_FACETS]:
        for latency in map(measures().__getitem__, LATENCIES):
            points = pd.DataFrame(_points(row, facet, latency))
            best = front(points)
            kept = points["id"].isin(drawn) | points.index.isin(best.index)
            table = with_names_beside(points[kept].drop(columns="id").reset_index(drop=True))
            name = f"cell{len(cells)}"
            data |= {name: table, f"front{len(cells)}": best}
            cells.append(_cell(row, facet, latency, name, f"front{len(cells)}"))
    left_out = plots_left_out(len(cells), len(row.facets) * len(LATENCIES))
    remarks = (*some_of(len(drawn), len(counted)), *left_out)
    view = View(grid(cells, 2, "colour"), data, remarks=remarks)
    return Drawing((view,), label_px=LABEL_PX)


def _known(run: ReportedRun) -> bool:
    return not any(math.isnan(run.number(name).value) for name in (THROUGHPUT, *LATENCIES))


def _points(row: PlacesOfKey, facet: str, latency: Measure) -> Iterator[dict[str, Any]]:
    """The experiments of a facet in the order of their x."""
    throughput = measures()[THROUGHPUT]
    for place in row.along_x(facet):
        yield {
            "id": place.run.id,
            "experiment": place.run.label,
            "order": row.values.index(place.x),
            "colour": place.colour,
            "name": _name(place, row),
            "valid": all(place.run.believed(shown.name) for shown in (latency, throughput)),
        } | {
            key: value
            for axis, shown in (("x", latency), ("y", throughput))
            for key, value in _ends(axis, place.run, shown)
        }


def _name(place: Place, row: PlacesOfKey) -> str:
    return "" if place.x == place.run.label else x_words(place.x)


def _ends(axis: str, run: ReportedRun, shown: Measure) -> Iterator[tuple[str, Any]]:
    estimate = run.number(shown.name)
    low, high = estimate.ends
    yield axis, estimate.value * shown.scale
    yield f"{axis}_low", max(0.0, low) * shown.scale
    yield f"{axis}_high", high * shown.scale
    yield f"{axis}_words", " ".join((*estimate_text(estimate, shown), shown.display_unit))


def with_names_beside(points: pd.DataFrame) -> pd.DataFrame:
    """The points with `align`, `dx` and `dy` of their names; '' as the name that has no room.

    A name has room inside the plot, where it covers no point and no name before it.
    """
    across, down = (
        size * points[axis].to_numpy() / points[f"{axis}_high"].max()
        for axis, size in (("x", NARROWEST), ("y", HEIGHT))
    )
    centres = list(zip(across, HEIGHT - down, strict=True))
    covered: list[Box] = [
        (x - POINT_PX, y - POINT_PX, x + POINT_PX, y + POINT_PX) for x, y in centres
    ]
    places = []
    for name, (x, y) in zip(points["name"], centres, strict=True):
        for align, dx, dy in BESIDE:
            left = x + dx - (LETTER * len(name) if align == "right" else 0)
            right = left + LETTER * len(name)
            box = (left, y + dy - NAME_PX / 2, right, y + dy + NAME_PX / 2)
            inside = left >= 0 and right <= NARROWEST
            if inside and not any(_overlap(box, other) for other in covered):
                covered.append(box)
                places.append((name, align, dx, dy))
                break
        else:
            places.append(("", "left", 0, 0))
    columns = ["name", "align", "dx", "dy"]
    return points.assign(**pd.DataFrame(places, points.index, columns))


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def front(points: pd.DataFrame) -> pd.DataFrame:
    """The points for which no other has more throughput (`y`) at no more latency (`x`)."""
    ordered = points.sort_values(["x", "y"], ascending=[True, False])
    best = ordered["y"].cummax().shift(fill_value=-math.inf)
    return ordered.loc[ordered["y"] > best, ["x", "y"]]


def _cell(row: PlacesOfKey, facet: str, latency: Measure, points: str, best: str) -> Spec:
    names, throughput = row.colours, measures()[THROUGHPUT]
    axis = {"tickCount": 5, "format": NUMBER, "grid": True}
    x = {"title": f"{latency.heading} ({latency.display_unit})", "axis": axis}
    y = {"title": f"{throughput.heading} ({throughput.display_unit})", "axis": axis}
    colour = {"color": colour_channel(names), "opacity": PICKED}
    place = {"x": number("x", **x), "y": number("y", **y)}
    intervals = [
        {"x": number("x_low", **x), "x2": {"field": "x_high"}, "y": number("y", **y)},
        {"x": number("x", **x), "y": number("y_low", **y), "y2": {"field": "y_high"}},
    ]
    marks = (
        place
        | shape_channel(names)
        | {
            "fill": text("colour", scale=colours(names), legend=None),
            "fillOpacity": {"condition": {"test": "datum.valid", "value": 1}, "value": 0},
            "tooltip": [
                text("experiment"),
                text("y_words", title=throughput.heading),
                text("x_words", title=latency.heading),
            ],
        }
    )
    layers: list[Spec] = [
        {"mark": {"type": "rule", "strokeWidth": 1.1}, "encoding": ends | colour}
        for ends in intervals
    ]
    if row.ordered:
        line = {"type": "line", "strokeWidth": 1.2, "opacity": 0.6}
        layers.append({"mark": line, "encoding": place | colour | {"order": number("order")}})
    layers.append({"mark": {"type": "point", "size": 48}, "encoding": marks | colour})
    beside = {key: {"expr": f"datum.{key}"} for key in ("align", "dx", "dy")}
    mark = {"type": "text", "baseline": "middle", "fontSize": 9.5, **beside}
    layers.append({"mark": mark, "encoding": place | {"text": text("name")}})
    dashed = {"type": "line", "strokeDash": [4, 3], "strokeWidth": 1, "color": theme.GREY}
    layers.append({"data": {"name": best}, "mark": dashed, "encoding": place})
    return {
        "data": {"name": points},
        "width": plot_width(2, LABEL_PX),
        "height": HEIGHT,
        "layer": layers,
        **heading(facet),
    }


FIGURE = Figure(
    "Throughput against latency",
    "Each point is an experiment, named by its value along its line where there is room; up and to "
    "the left is better. No experiment beats those on the dashed line: there, more throughput "
    "costs latency. Means over repeats with 95 % confidence intervals.",
    draw,
    order=20,
    axes=FIRST_AXES,
)

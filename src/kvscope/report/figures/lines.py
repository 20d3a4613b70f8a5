"""Lines over a number: in one plot while they are few, each in a plot of its own where many."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from kvscope.plan.figures import Axes
from kvscope.report import theme
from kvscope.report.axes import rows, series
from kvscope.report.data import ReportedRun, StudyData
from kvscope.report.figures.figure import (
    NUMBER,
    PICKED,
    Drawing,
    Spec,
    View,
    colour_channel,
    colours,
    first_plots,
    grid,
    heading,
    is_wide,
    log_ticks,
    number,
    plot_width,
    text,
)
from kvscope.report.figures.spread import SMALL, some_of, spread

MOST_TOGETHER = 6  # lines in a plot; more are hard to distinguish
MOST_RUNS = 12  # experiments of a large study whose requests a figure shows
COLUMNS = 3  # of plots with one line each
MOST_PLOTS = 36  # each draws all lines: the size of a figure grows with the square
HEIGHT, HEIGHT_APART = 200, 110
LABEL_PX = 56
STEPPED: Spec = {"type": "line", "interpolate": "step-after"}
DOTTED: Spec = {"type": "line", "point": {"size": 26, "filled": True}}


@dataclass(frozen=True)
class Lines:
    """A plot of lines: a table with columns `line`, `x` and `y`, and what the axes show.

    `more` are further layers, drawn over the lines with the same x and colours. x is logarithmic
    where it spreads far, unless it `counts` something.
    """

    table: pd.DataFrame
    x: str
    y: str
    title: str = ""
    subtitle: str = ""
    more: tuple[Spec, ...] = ()
    counts: bool = False


def request_plots(
    study: StudyData, axes: Sequence[Axes]
) -> tuple[dict[str, list[tuple[str, ReportedRun]]], tuple[str, ...]]:
    """Experiments by plot, each with its line's name, along the first axes; a remark on others.

    Only those in which latencies differ: where one forward pass serves all requests, none do. Of a
    large study MOST_RUNS experiments of those that the axes select.
    """
    declared = study.axes_of(axes)
    chosen = study.complete
    remarks: tuple[str, ...] = ()
    if len(chosen) > SMALL:
        row, *_ = rows(study, lambda _: True, declared)
        selected = [place.run for place in row.places]
        chosen = spread(selected, MOST_RUNS)
        remarks = some_of(len(chosen), len(selected))
    shown = {run.id for run in chosen if run.latencies.latency_s.nunique() > 1}
    row, *_ = rows(study, lambda run: run.id in shown, declared)
    return series(row, MOST_TOGETHER), remarks


def lines_drawing(
    plots: Sequence[Lines],
    data: dict[str, pd.DataFrame],
    mark: Spec = STEPPED,
    columns: int = 2,
    tooltip: Sequence[Spec] = (),
    note: str = "",
    remarks: tuple[str, ...] = (),
) -> Drawing:
    """The plots, `columns` beside each other; `data` are the tables that further layers name.

    Where a plot has more than MOST_TOGETHER lines, each line has a plot, the others grey behind it.
    """
    names = list(dict.fromkeys(line for plot in plots for line in plot.table["line"]))
    together = max(plot.table["line"].nunique() for plot in plots) <= MOST_TOGETHER
    columns = min(columns, len(plots)) if together else COLUMNS
    cells: list[Spec] = []
    for plot in plots:
        name = f"cell{len(data)}"
        data = data | {name: plot.table}
        base = {
            "data": {"name": name},
            "width": plot_width(columns, LABEL_PX),
            "height": HEIGHT if together else HEIGHT_APART,
        }
        if together:
            title = heading(plot.title, plot.subtitle)
            cells.append(base | title | _together(plot, names, mark, tooltip))
        else:
            cells += [base | cell for cell in _apart(plot, names, mark, tooltip)]
    kept, data, left_out = first_plots(cells, data, MOST_PLOTS)
    chart = grid(kept, columns, "line" if together else None)
    view = View(chart, data, note=note, remarks=(*remarks, *left_out))
    return Drawing((view,), label_px=LABEL_PX)


def _x(plot: Lines) -> Spec:
    low, high = plot.table["x"].min(), plot.table["x"].max()
    wide = not plot.counts and is_wide([low, high], 10)
    scale = {"type": "log", "nice": False} if wide else {"zero": True}
    ticks = {"values": log_ticks(low, high)} if wide else {"tickCount": 5}
    return {"x": number("x", title=plot.x, scale=scale, axis={**ticks, "format": NUMBER})}


def _y(plot: Lines) -> Spec:
    return {"y": number("y", title=plot.y, axis={"tickCount": 5, "format": NUMBER})}


def _tooltip(plot: Lines, more: Sequence[Spec]) -> Spec:
    fields = [text("line", title="experiment")]
    fields += [number(axis, title=getattr(plot, axis), format=",.4~g") for axis in ("x", "y")]
    return {"tooltip": [*fields, *more]}


def _together(plot: Lines, names: list[str], mark: Spec, tooltip: Sequence[Spec]) -> Spec:
    pointed = "point" in mark and len(names) > 1
    shape = {"shape": text("line", scale=colours(names))} if pointed else {}
    return {
        "encoding": _x(plot) | {"color": colour_channel(names, "line"), "opacity": PICKED},
        "layer": [
            {"mark": mark, "encoding": _y(plot) | shape | _tooltip(plot, tooltip)},
            *plot.more,
        ],
    }


def _apart(plot: Lines, names: list[str], mark: Spec, tooltip: Sequence[Spec]) -> Iterator[Spec]:
    others = {key: value for key, value in mark.items() if key != "point"}
    others |= {"color": theme.GREY, "strokeWidth": 0.8, "opacity": 0.5}
    for name in dict.fromkeys(plot.table["line"]):
        only = {"transform": [{"filter": {"field": "line", "equal": name}}]}
        colour = {"color": text("line", scale=colours(names), legend=None)}
        above = ", ".join(filter(None, (plot.title, name)))
        yield heading(above, plot.subtitle) | {
            "encoding": _x(plot),
            "layer": [
                {"mark": others, "encoding": _y(plot) | {"detail": text("line")}},
                only | {"mark": mark, "encoding": _y(plot) | colour | _tooltip(plot, tooltip)},
                *(layer | only for layer in plot.more),
            ],
        }

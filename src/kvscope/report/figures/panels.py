"""Figures of metrics over experiments: a panel has a title and metrics of one unit."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvscope.report import style
from kvscope.report.arrangements import Arrangement, Series, arrangements
from kvscope.report.data import StudyData
from kvscope.report.figures.figure import Chart, StudyFigure
from kvscope.report.words import Shown

# A label for each experiment up to here, a number beyond.
MOST_LABELS = 40
ONE_ROW = 3  # as many axes fit beside each other
GROUP = 0.8  # width of all bars at one tick
NOT_VALID = "hatched or hollow: not valid"


@dataclass(frozen=True)
class Panel:
    """Metrics of one unit that belong together."""

    title: str
    metrics: tuple[Shown, ...]
    shared: bool = True  # one scale for all of them; not where one would dwarf the others


@dataclass(frozen=True)
class Point:
    """One experiment's value, scaled; `below` and `above` are its interval's arms."""

    place: int
    value: float
    below: float
    above: float
    valid: bool


def over_experiments(name: str, title: str, caption: str, panels: Sequence[Panel]) -> StudyFigure:
    """A figure that shows these panels over the study's experiments."""
    return StudyFigure(
        name,
        title,
        caption,
        available=lambda study: any(
            not math.isnan(run.number(shown.metric).value)
            for run in study.complete
            for panel in panels
            for shown in panel.metrics
        ),
        draw=_drawing(panels),
        chart=_chart(panels),
    )


def _chart(panels: Sequence[Panel]) -> Callable[[StudyData], Chart]:
    return lambda study: {"panels": [asdict(panel) for panel in panels]}


def _drawing(panels: Sequence[Panel]) -> Callable[[StudyData], Figure]:
    """An axes a metric; a row a panel, or all in one row if they are few."""
    widest = max(len(panel.metrics) for panel in panels)
    count = sum(len(panel.metrics) for panel in panels)
    columns = count if count <= ONE_ROW else widest

    def draw(study: StudyData) -> Figure:
        arrangement = arrangements(study)[0]
        across = _across(arrangement)
        height = 0.8 + 0.24 * len(arrangement.ticks) if across else 2.2
        figure, axes = style.grid_of(-(-count // columns), columns, height)
        cells = iter(axes)
        for panel in panels:
            own = [next(cells) for _ in panel.metrics]
            for cell, shown in zip(own, panel.metrics, strict=True):
                _draw_cell(cell, study, arrangement, shown, labelled=cell in axes[::columns])
            if panel.shared:
                _share(own, across)
        style.legend_below(figure, axes[0])
        if any(not run.valid for run in study.complete):
            figure.suptitle(NOT_VALID, x=0.99, ha="right", fontsize=7, color="#666666")
        return figure

    return draw


def _share(axes: Sequence[Axes], across: bool) -> None:
    """Give axes of one unit the widest one's limit, so that they can be compared."""
    for cell in axes:
        if across:
            cell.set_xlim(right=max(other.get_xlim()[1] for other in axes))
        else:
            cell.set_ylim(top=max(other.get_ylim()[1] for other in axes))


def _across(arrangement: Arrangement) -> bool:
    """Whether bars lie, so that long labels can be read."""
    return not arrangement.key and len(arrangement.ticks) <= MOST_LABELS


def points_of(study: StudyData, series: Series, shown: Shown) -> list[Point]:
    """The values of one metric along a series, those that are defined."""
    points = []
    for place, number in series.points:
        run = study.runs[number]
        found = run.number(shown.metric)
        if math.isnan(found.value):
            continue
        below, above = (
            ((found.value - found.low) * shown.scale, (found.high - found.value) * shown.scale)
            if found.has_interval
            else (0.0, 0.0)
        )
        points.append(Point(place, found.value * shown.scale, below, above, run.valid))
    return points


def _draw_cell(
    axes: Axes, study: StudyData, arrangement: Arrangement, shown: Shown, labelled: bool
) -> None:
    drawing = _draw_line if arrangement.ordered else _draw_bars
    if not arrangement.ordered and len(arrangement.ticks) > MOST_LABELS:
        drawing = _draw_points
    for number, series in enumerate(arrangement.series):
        points = points_of(study, series, shown)
        if points:
            drawing(axes, arrangement, number, points)
    axes.set_title(shown.heading)
    places = range(len(arrangement.ticks))
    if _across(arrangement):
        axes.set_yticks(places, arrangement.ticks if labelled else [""] * len(places))
        axes.set_ylim(len(places) - 0.5, -0.5)
        axes.grid(False, axis="y")
        axes.set_xlabel(shown.unit)
        axes.set_xlim(0, axes.get_xlim()[1])
        return
    if len(places) <= MOST_LABELS:
        axes.set_xticks(places, arrangement.ticks)
    axes.set_xlabel(arrangement.title)
    axes.set_xlim(-0.6, len(places) - 0.4)
    axes.grid(False, axis="x")
    axes.set_ylabel(shown.unit)
    top = axes.get_ylim()[1]
    axes.set_ylim(-0.02 * top if arrangement.ordered else 0, top)  # markers at 0 stay whole


def _draw_line(axes: Axes, arrangement: Arrangement, number: int, points: list[Point]) -> None:
    colour, turn = style.colour(number), style.cycle(number)
    places = [point.place + _aside(number, len(arrangement.series)) for point in points]
    axes.errorbar(
        places,
        [point.value for point in points],
        yerr=_arms(points),
        color=colour,
        linestyle=style.LINES[turn],
        marker=style.MARKERS[turn],
        elinewidth=0.9,
        capsize=2.0,
        label=arrangement.series[number].name,
    )
    doubtful = [
        (x, point.value) for x, point in zip(places, points, strict=True) if not point.valid
    ]
    for x, y in doubtful:
        axes.plot(x, y, style.MARKERS[turn], color=colour, markerfacecolor="white", zorder=5)


def _aside(number: int, count: int) -> float:
    """A little to the side, so that the intervals of several series can be told apart."""
    return 0.0 if count == 1 else 0.16 * (number / (count - 1) - 0.5)


def _draw_bars(axes: Axes, arrangement: Arrangement, number: int, points: list[Point]) -> None:
    width = GROUP / len(arrangement.series)
    offset = (number - (len(arrangement.series) - 1) / 2) * width
    places = [point.place + offset for point in points]
    values = [point.value for point in points]
    error_style = {"elinewidth": 0.9, "capsize": 2.0, "ecolor": "#333333"}
    label = arrangement.series[number].name
    if _across(arrangement):
        bars = axes.barh(
            places, values, width, xerr=_arms(points), error_kw=error_style, label=label
        )
    else:
        bars = axes.bar(
            places, values, width, yerr=_arms(points), error_kw=error_style, label=label
        )
    for bar, point in zip(bars, points, strict=True):
        bar.set_edgecolor(style.colour(number))
        bar.set_facecolor(style.colour(number) if point.valid else "white")
        if not point.valid:
            bar.set_hatch("/////")


def _draw_points(axes: Axes, arrangement: Arrangement, number: int, points: list[Point]) -> None:
    """Small points, where bars would be a wall."""
    for valid in (True, False):
        some = [point for point in points if point.valid == valid]
        axes.errorbar(
            [point.place for point in some],
            [point.value for point in some],
            yerr=_arms(some),
            color=style.colour(number),
            linestyle="none",
            marker="o",
            markersize=2.0,
            markerfacecolor=style.colour(number) if valid else "white",
            elinewidth=0.5,
            label=arrangement.series[number].name if valid else None,
        )


def _arms(points: list[Point]) -> list[list[float]]:
    return [[point.below for point in points], [point.above for point in points]]

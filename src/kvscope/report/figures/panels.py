"""Figures of metrics over experiments: a panel has a title and metrics of one unit."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase
from matplotlib.ticker import StrMethodFormatter

from kvscope.report import style
from kvscope.report.arrangements import (
    MOST_LABELS,
    Arrangement,
    Series,
    Wanted,
    arrangements,
    everything,
    leading,
    views,
)
from kvscope.report.data import Run, StudyData
from kvscope.report.figures.figure import Chart, StudyFigure
from kvscope.report.words import Shown, of_interest

ONE_ROW = 3  # as many axes fit beside each other
LETTERS = 34  # of a line below an axis
WIDEST = 110  # of a line above all axes
LINE = 0.17  # inches of a line of a legend
GROUP = 0.8  # width of all bars at one tick
DECADES = 30.0  # lines whose values differ by more than this get a logarithmic axis
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

    place: float
    value: float
    below: float
    above: float
    valid: bool


def over_experiments(
    name: str,
    title: str,
    caption: str,
    panels: Sequence[Panel],
    along: str | None = None,
    wanted: Wanted = everything,
    available: Callable[[StudyData], bool] = lambda study: True,
) -> StudyFigure:
    """A figure that shows these panels over the wanted experiments of the studies it suits.

    It stands over the key `along` if the study varies it. Metrics that no experiment of the study
    has are left out, and so are experiments that have none of the metrics.
    """

    def telling(run: Run) -> bool:
        metrics = (shown.metric for panel in panels for shown in panel.metrics)
        return wanted(run) and any(not math.isnan(run.number(name).value) for name in metrics)

    def found(study: StudyData) -> list[Panel]:
        known = [_known(panel, study, telling) for panel in panels]
        return [panel for panel in known if panel.metrics]

    def draw(study: StudyData) -> Figure:
        return _draw(study, found(study), leading(arrangements(study, telling), along))

    def chart(study: StudyData) -> Chart:
        shown = views(arrangements(study, telling), along)
        return {"panels": [asdict(panel) for panel in found(study)], "views": shown}

    return StudyFigure(
        name, title, caption, lambda study: available(study) and bool(found(study)), draw, chart
    )


def _known(panel: Panel, study: StudyData, wanted: Wanted) -> Panel:
    """The panel with the metrics that are of interest among the wanted experiments."""
    runs = [run for run in study.complete if wanted(run)]
    known = tuple(shown for shown in panel.metrics if of_interest(shown, runs))
    return Panel(panel.title, known, panel.shared)


def _draw(study: StudyData, panels: Sequence[Panel], rows: Sequence[Arrangement]) -> Figure:
    """A row of axes for each arrangement, each with a legend of its own."""
    count = sum(len(panel.metrics) for panel in panels)
    widest = max(len(panel.metrics) for panel in panels)
    columns = count if count <= ONE_ROW else widest if widest > 1 else ONE_ROW
    heights = [-(-count // columns) * _height(one) + _legend_height(one) for one in rows]
    figure, parts = style.stacked(heights)
    for part, arrangement in zip(parts, rows, strict=True):
        _draw_row(part, study, panels, arrangement, columns)
    if any(not run.valid for run in study.complete):
        style.note_above(figure, NOT_VALID)
    return figure


def _height(arrangement: Arrangement) -> float:
    """Inches of a row of axes."""
    if not arrangement.across:
        return 2.2
    return 0.8 + len(arrangement.ticks) * (0.12 + 0.12 * len(arrangement.series))


def _legend_height(arrangement: Arrangement) -> float:
    """Inches of a legend's lines beyond the first."""
    names = [series.name for series in arrangement.series]
    return LINE * (-(-len(names) // style.legend_columns(names)) - 1)


def _draw_row(
    part: FigureBase,
    study: StudyData,
    panels: Sequence[Panel],
    arrangement: Arrangement,
    columns: int,
) -> None:
    """An axes a metric; a line of them a panel, or all in one line if they are few."""
    count = sum(len(panel.metrics) for panel in panels)
    axes = style.axes_in(part, -(-count // columns), columns)
    cells = iter(axes)
    for panel in panels:
        own = [next(cells) for _ in panel.metrics]
        for cell, shown in zip(own, panel.metrics, strict=True):
            _draw_cell(cell, study, arrangement, shown, labelled=cell in axes[::columns])
        if panel.shared:
            _share(own, arrangement.across)
        groups = [list(zip(own, panel.metrics, strict=True))]
        for group in groups if panel.shared else [[one] for one in groups[0]]:
            _stretch(study, arrangement, group)
    for cell in cells:
        cell.set_visible(False)
    if arrangement.fixed:
        part.suptitle(fill(arrangement.fixed, WIDEST), x=0.01, ha="left", fontsize=8)
    style.legend_below(part, axes)


def _share(axes: Sequence[Axes], across: bool) -> None:
    """Give axes of one unit the widest one's limit, so that they can be compared."""
    for cell in axes:
        if across:
            lows, tops = zip(*(other.get_xlim() for other in axes), strict=True)
            cell.set_xlim(min(lows), max(tops))
        else:
            lows, tops = zip(*(other.get_ylim() for other in axes), strict=True)
            cell.set_ylim(min(lows), max(tops))


def _stretch(
    study: StudyData, arrangement: Arrangement, cells: Sequence[tuple[Axes, Shown]]
) -> None:
    """Make axes logarithmic where lines' values would not be told apart on linear ones."""
    values = [
        point.value
        for _, shown in cells
        for series in arrangement.series
        for point in points_of(study, arrangement, series, shown)
    ]
    least, greatest = min(values, default=0.0), max(values, default=0.0)
    if arrangement.ordered and 0 < least * DECADES < greatest:
        for axes, _ in cells:
            axes.set_yscale("log", nonpositive="clip")
            axes.set_ylim(least / 1.5, greatest * 1.5)
            axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


def points_of(
    study: StudyData, arrangement: Arrangement, series: Series, shown: Shown
) -> list[Point]:
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
        at, value = arrangement.positions[place], found.value * shown.scale
        points.append(Point(at, value, below, above, run.believed(shown.metric)))
    return points


def _draw_cell(
    axes: Axes, study: StudyData, arrangement: Arrangement, shown: Shown, labelled: bool
) -> None:
    drawing = _draw_line if arrangement.ordered else _draw_bars
    if not arrangement.ordered and len(arrangement.ticks) > MOST_LABELS:
        drawing = _draw_points
    series = [points_of(study, arrangement, one, shown) for one in arrangement.series]
    axes.set_visible(any(series))
    for number, points in enumerate(series):
        if points:
            drawing(axes, arrangement, number, points)
    axes.set_title(shown.heading)
    if arrangement.across:
        _set_across(axes, arrangement, shown, labelled)
    else:
        _set_upright(axes, arrangement, shown)


def _set_across(axes: Axes, arrangement: Arrangement, shown: Shown, labelled: bool) -> None:
    places = range(len(arrangement.ticks))
    axes.set_yticks(places, arrangement.ticks if labelled else [""] * len(places))
    axes.set_ylim(len(places) - 0.5, -0.5)
    axes.grid(False, axis="y")
    axes.set_xlabel(shown.unit)
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 0.0) if shown.signed else 0.0, high)
    if shown.signed:
        axes.axvline(0, color="#444444", linewidth=0.7, zorder=0.5)


def _set_upright(axes: Axes, arrangement: Arrangement, shown: Shown) -> None:
    count = len(arrangement.ticks)
    if count <= MOST_LABELS:
        axes.set_xticks(arrangement.positions, arrangement.ticks)
    axes.set_xlabel(fill(arrangement.title, LETTERS))
    axes.set_xlim(-0.6, count - 0.4)
    axes.grid(False, axis="x")
    axes.set_ylabel(shown.unit)
    low, top = axes.get_ylim()
    aside = 0.02 * top if arrangement.ordered else 0.0  # markers at the edges stay whole
    axes.set_ylim(min(low, -aside) if shown.signed else -aside, top + aside)
    if shown.signed:
        axes.axhline(0, color="#444444", linewidth=0.7, zorder=0.5)


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
    if arrangement.across:
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

"""Figures of metrics over experiments: a panel has a title and metrics of one unit."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from kvscope.base.quantities import plural
from kvscope.metrics.measure import Measure, measures
from kvscope.plan.figures import Axes
from kvscope.report.axes import (
    Place,
    PlacesOfKey,
    Wanted,
    by_experiment,
    rows,
    split_by_colour,
    x_words,
)
from kvscope.report.data import ReportedRun, StudyData, of_interest
from kvscope.report.figures.by_grid import by_grid
from kvscope.report.figures.figure import (
    LETTER,
    NUMBER,
    PICKED,
    RINGS,
    ROW_EACH,
    Drawing,
    Figure,
    Lead,
    Spec,
    View,
    colour_channel,
    colours,
    grid,
    has_rings,
    heading,
    is_wide,
    log_ticks,
    number,
    plot_width,
    plots_left_out,
    shape_channel,
    text,
    widen_covered,
)
from kvscope.report.figures.spread import SMALL, evenly, some_of, spread
from kvscope.report.theme import SHAPES
from kvscope.report.words import estimate_text

HEIGHT = 150
LONGEST = 190  # pixels of a label
SHORT = 100  # pixels: labels that leave room for three plots beside each other
LINES_PX = 52  # beside a plot, for the numbers of its axis
MOST_PLOTS = 144
FEW_PLOTS = 48  # of many experiments, where there are more than MOST_PLOTS
MOST_BARS = 80  # in a plot of many experiments
MOST_LINES = len(SHAPES)  # in a plot, each of its own shape
ASIDE = 0.025  # of the axis: between the first and the last colour at one place
DECADES = 30  # values that spread further stand on a logarithmic axis
HOLLOW = "hollow: not valid"
MEANS = "lines: means of experiments in one place"


@dataclass(frozen=True)
class Panel:
    """Metrics of one unit that belong together."""

    title: str
    metrics: tuple[str, ...]
    shared: bool = True  # one scale for all of them; not where one would dwarf the others

    @property
    def measures(self) -> tuple[Measure, ...]:
        """The declarations of its metrics, but for those whose package is not installed."""
        return tuple(measures()[name] for name in self.metrics if name in measures())


Plot = tuple[PlacesOfKey, Panel, Measure, str]


def over_experiments(
    title: str,
    caption: str,
    panels: Sequence[Panel],
    own_axes: Callable[[StudyData], Axes | None] = lambda study: None,
    wanted: Wanted = lambda run: True,
    suits: Callable[[StudyData], bool] = lambda study: True,
    lead: str = "",
    *,
    order: int,
) -> Figure:
    """A figure that shows these panels over the wanted experiments of the studies it suits.

    It has the axes that the study declares for it, or else `own_axes`. Metrics that no experiment
    has are left out, and so are experiments that have none of the metrics. `lead` is the metric
    that it shows above all: the first one, if none is named.
    """
    above_all = lead or panels[0].metrics[0]

    def has_any(run: ReportedRun) -> bool:
        metrics = (name for panel in panels for name in panel.metrics)
        return wanted(run) and any(not math.isnan(run.number(name).value) for name in metrics)

    def draw(
        study: StudyData, axes: Sequence[Axes], panels: Sequence[Panel] = panels
    ) -> Drawing | None:
        every = [run for run in study.complete if has_any(run)]
        runs = spread(every)
        drawn_ids = {run.id for run in runs}
        defined = [_known(panel, runs) for panel in panels]
        left_out = _repeated(defined, runs)
        drawn = [part for panel in defined if (part := _without(panel, left_out)).metrics]
        if not drawn or not suits(study):
            return None
        declared = [
            split_by_colour(row) if row.ordered and len(row.colours) > MOST_LINES else row
            for row in rows(
                study, lambda run: run.id in drawn_ids, study.axes_of(axes, own_axes(study))
            )
        ]
        everything = by_experiment(study, runs)
        views = [_view(" and ".join(row.title for row in declared), declared, drawn, runs)]
        if declared != [everything]:
            views.append(_view(everything.title, [everything], drawn, runs))
        some = some_of(len(runs), len(every))
        views = [
            replace(view, note=_note(view.note, left_out), remarks=(*some, *view.remarks))
            for view in views
        ]
        remarks = [HOLLOW] if any(not run.valid for run in runs) else []
        remarks += [MEANS] if len(runs) > SMALL and any(row.ordered for row in declared) else []
        remarks += [RINGS] if any(map(has_rings, views[0].data.values())) else []
        return Drawing(tuple(views), ("Along",), _label_px(declared), tuple(remarks))

    def draw_lead(study: StudyData, axes: Sequence[Axes]) -> Drawing | None:
        return draw(study, axes, [Panel(title, (above_all,))])

    first = next(panel.metrics for panel in panels if above_all in panel.metrics)
    lead_drawing = Lead(above_all, by_grid(draw_lead), first)
    return Figure(title, caption, by_grid(draw), order, ROW_EACH, lead=lead_drawing)


def _known(panel: Panel, runs: Sequence[ReportedRun]) -> Panel:
    """The panel with the metrics that are of interest among these experiments."""
    metrics = tuple(measure.name for measure in panel.measures if of_interest(measure, runs))
    return Panel(panel.title, metrics, panel.shared)


def _repeated(panels: Sequence[Panel], runs: Sequence[ReportedRun]) -> tuple[Measure, ...]:
    """Metrics that equal, in each of several experiments, an earlier metric of the same unit.

    Without stalls, throughput is that without stalls; requests that are alike have one latency.
    """
    if len(runs) < 2:
        return ()
    seen: set[tuple[str, ...]] = set()
    left_out = []
    for measure in (measure for panel in panels for measure in panel.measures):
        digits = (measure.unit, *(_digits(run, measure) for run in runs))
        if digits in seen:
            left_out.append(measure)
        seen.add(digits)
    return tuple(left_out)


def _digits(run: ReportedRun, shown: Measure) -> str:
    """Value and interval, in more digits than are drawn; NaN equals NaN."""
    interval = run.number(shown.name)
    return f"{interval.value:.6g} {interval.low:.6g} {interval.high:.6g}"


def _without(panel: Panel, left_out: Sequence[Measure]) -> Panel:
    metrics = tuple(measure.name for measure in panel.measures if measure not in left_out)
    return replace(panel, metrics=metrics)


def _note(note: str, left_out: Sequence[Measure]) -> str:
    """The note of a view, and which metrics are not drawn beside those that they equal."""
    if not left_out:
        return note
    headings = ", ".join(measure.heading for measure in left_out)
    return f"{note} Equal to what is drawn: {headings}.".strip()


def _view(
    title: str,
    rows_: Sequence[PlacesOfKey],
    panels: Sequence[Panel],
    runs: Sequence[ReportedRun],
) -> View:
    """A plot for each row, metric and facet; of many experiments fewer plots, and fewer bars."""
    large = len(runs) > SMALL
    shown = [_fewer_bars(row) if large else row for row in rows_]
    columns = _columns(shown, panels)
    width = plot_width(columns, _label_px(shown))
    every = [cell for cell in _cells(shown, panels) if _known_places(cell[0], cell[3], cell[2])]
    fewer = _fewer_plots(every) if large and len(every) > MOST_PLOTS else every
    plots = fewer[:MOST_PLOTS]  # each has as much as all places
    names = list(dict.fromkeys(colour for row in shown for colour in row.colours))
    if large:
        seen = {place.colour for row, _, _, facet in plots for place in row.of_facet(facet)}
        names = [name for name in names if name in seen]
    cells: list[Spec] = []
    data: dict[str, pd.DataFrame] = {}
    for row, panel, metric, facet in plots:
        data[f"cell{len(cells)}"] = _frame(row, facet, metric, names)
        values = _values(row, panel.measures if panel.shared else (metric,))
        cells.append(
            {
                "data": {"name": f"cell{len(cells)}"},
                **heading(f"{metric.heading} ({metric.display_unit})", facet),
                "width": width,
                **(_lines(row, values, names, large) if row.ordered else _bars(row, values, names)),
            }
        )
    missing = len(runs) - len({place.run.id for row in rows_ for place in row.places})
    note = f"{plural(missing, 'more experiment')} not along these axes." if missing else ""
    return View(
        grid(cells, columns, "colour"), data, (title,), note, _left_out(rows_, shown, plots, every)
    )


def _left_out(
    rows_: Sequence[PlacesOfKey],
    shown: Sequence[PlacesOfKey],
    plots: Sequence[Plot],
    every: Sequence[Plot],
) -> tuple[str, ...]:
    """Remarks on bars and on plots that are left out."""
    bars, count = (sum(len(row.places) for row in of) for of in (shown, rows_))
    if sum(len(row.places) for row in rows_) <= SMALL:
        return plots_left_out(len(plots), len(every))
    spread_ = f"{len(plots)} of {len(every)} plots are shown, as many of each metric."
    return (*some_of(bars, count), *([spread_] if len(plots) < len(every) else []))


def _fewer_bars(row: PlacesOfKey) -> PlacesOfKey:
    """The row with no more than MOST_BARS bars in a facet, spread over its experiments."""
    if row.ordered:
        return row
    facets = (spread([p.run for p in row.of_facet(facet)], MOST_BARS) for facet in row.facets)
    kept = {run.id for runs in facets for run in runs}
    return replace(row, places=tuple(place for place in row.places if place.run.id in kept))


def _fewer_plots(plots: Sequence[Plot]) -> list[Plot]:
    """About FEW_PLOTS of the plots: of each row and metric equally many, spread over the facets."""
    by_metric: dict[tuple[int, Measure], list[Plot]] = {}
    for plot in plots:
        by_metric.setdefault((id(plot[0]), plot[2]), []).append(plot)
    most = max(1, FEW_PLOTS // max(1, len(by_metric)))
    return [plot for facets in by_metric.values() for plot in evenly(facets, most)]


def _cells(shown: Sequence[PlacesOfKey], panels: Sequence[Panel]) -> Iterator[Plot]:
    for row in shown:
        for panel in panels:
            for metric in panel.measures:
                for facet in row.facets:
                    yield row, panel, metric, facet


def _columns(shown: Sequence[PlacesOfKey], panels: Sequence[Panel]) -> int:
    """How many plots stand beside each other on paper."""
    count = sum(len(panel.metrics) for panel in panels)
    most = 3 if _label_px(shown) <= SHORT else 2
    if (facets := max(len(row.facets) for row in shown)) > 1:
        return min(most, facets)
    return count if count <= most else 2 if count in (2, 4) else most


def _label_px(shown: Sequence[PlacesOfKey]) -> int:
    """Room beside a plot: for the labels of bars, or the numbers of a line's axis."""
    labels = [x_words(x) for row in shown if not row.ordered for x in row.values]
    longest = max((len(line) for label in labels for line in label.split("\n")), default=0)
    return max(LINES_PX, min(LONGEST, round(LETTER * longest)) + 26 if longest else 0)


def _frame(row: PlacesOfKey, facet: str, shown: Measure, names: Sequence[str]) -> pd.DataFrame:
    """The values of one metric in one facet, those that are defined; in the unit shown."""
    places = _known_places(row, facet, shown)
    order = {name: number for number, name in enumerate(names)}
    frame = pd.DataFrame([_point(place, row, shown, order) for place in places])
    return widen_covered(frame, "x", "value") if row.ordered and places else frame


def _known_places(row: PlacesOfKey, facet: str, shown: Measure) -> list[Place]:
    return [p for p in row.of_facet(facet) if not math.isnan(p.run.number(shown.name).value)]


def _point(
    place: Place, row: PlacesOfKey, shown: Measure, names: Mapping[str, int]
) -> dict[str, Any]:
    estimate = place.run.number(shown.name)
    value = estimate.value * shown.scale
    low, high = (end * shown.scale for end in estimate.ends)
    valid = place.run.believed(shown.name)
    return {
        "x": place.x if row.ordered else x_words(place.x),
        "at": _aside(place, row, names) if row.ordered else 0,
        "colour": place.colour,
        "value": value,
        "low": low if shown.signed else max(0.0, low),
        "high": high,
        "valid": valid,
        "experiment": place.run.label,
        "estimate": " ".join((*estimate_text(estimate, shown), shown.display_unit)),
        "reasons": "" if valid else f"not valid: {', '.join(place.run.reasons)}",
    }


def _aside(place: Place, row: PlacesOfKey, names: Mapping[str, int]) -> float:
    """x, a little aside, so that the intervals of several colours do not hide each other."""
    part = names[place.colour] / (len(names) - 1) - 0.5 if len(names) > 1 else 0.0
    least, greatest = row.values[0], row.values[-1]
    if is_wide((least, greatest)):
        return float(place.x * (greatest / least) ** (ASIDE * part))
    return float(place.x + ASIDE * part * (greatest - least))


def _values(row: PlacesOfKey, metrics: Sequence[Measure]) -> Spec:
    """Scale and ticks of the values of metrics that share them, over all facets of a row."""
    numbers = [(place.run.number(s.name), s) for s in metrics for place in row.places]
    defined = [(n, s) for n, s in numbers if not math.isnan(n.value)]
    values = [n.value * s.scale for n, s in defined]
    ends = [end * s.scale for n, s in defined if n.has_interval for end in (n.low, n.high)]
    high = max([*values, *ends], default=1.0) or 1.0
    if row.ordered and is_wide(values, DECADES):
        low = min(values) / 1.5
        return {
            "title": None,
            "scale": {"type": "log", "domain": [low, high * 1.1], "clamp": True, "nice": False},
            "axis": {"values": log_ticks(low, high * 1.1), "format": NUMBER},
        }
    low = min([0.0, *values, *ends]) if any(s.signed for s in metrics) else 0.0
    return {
        "title": None,
        "scale": {"domain": [low, high], "nice": True},
        "axis": {"tickCount": 4, "format": NUMBER, "grid": True, "labelOverlap": "greedy"},
    }


TOOLTIP = [
    text("experiment"),
    text("estimate", title="mean ± half the 95 % interval"),
    number("low", format=".4~g"),
    number("high", format=".4~g"),
    text("reasons"),
]


def _lines(row: PlacesOfKey, values: Spec, names: Sequence[str], large: bool) -> Spec:
    """A line for each colour over numbers, with intervals; hollow points are not valid.

    In a large study a line goes through the means of a colour's points in one place.
    """
    log = is_wide(row.values)
    x = number(
        "at",
        title=row.title,
        scale={
            "type": "log" if log else "linear",
            "domain": [row.values[0], row.values[-1]],
            "padding": 12,
            "zero": False,
        },
        axis={"values": row.values, "format": NUMBER, "labelOverlap": "greedy"},
    )
    scale = colours(names)
    mean = {"aggregate": "mean"} if large else {}
    points = {
        "y": number("value", **values),
        "fill": text("colour", scale=scale, legend=None),
        "fillOpacity": {"condition": {"test": "datum.valid", "value": 1}, "value": 0},
        "size": number("size", scale=None, legend=None),
        "tooltip": TOOLTIP,
    } | shape_channel(names)
    return {
        "height": HEIGHT,
        "encoding": {"x": x, "color": colour_channel(names), "opacity": PICKED},
        "layer": [
            {
                "mark": {"type": "rule", "strokeWidth": 1.2},
                "encoding": {"y": number("low", **values), "y2": {"field": "high"}},
            },
            {"mark": "line", "encoding": {"y": number("value", **values) | mean}},
            {"mark": {"type": "point", "strokeWidth": 1.5}, "encoding": points},
        ],
    }


def _bars(row: PlacesOfKey, values: Spec, names: Sequence[str]) -> Spec:
    """Horizontal bars with intervals, grouped by colour; bars of invalid runs are hollow."""
    order = [x_words(x) for x in row.values]
    lines = max(label.count("\n") + 1 for label in order)
    axis = {"grid": False, "domain": True, "labelExpr": "split(datum.label, '\\n')"}
    axis |= {"labelLineHeight": 12, "labelOffset": -6 * (lines - 1)}
    several = len(names) > 1
    shared = {"y": text("x", sort=order, title=None, axis=axis), "opacity": PICKED}
    bars = {
        "x": number("value", **values),
        "color": colour_channel(names),
        "stroke": text("colour", scale=colours(names), legend=None),
        "fillOpacity": {"condition": {"test": "datum.valid", "value": 0.85}, "value": 0},
        "tooltip": TOOLTIP,
    }
    return {
        "height": {"step": 14 if several else max(18, 13 * lines + 4)},
        "encoding": shared | ({"yOffset": text("colour", sort=list(names))} if several else {}),
        "layer": [
            {
                "mark": {"type": "bar", "strokeWidth": 1.2, "height": {"band": 0.8}},
                "encoding": bars,
            },
            {
                "mark": {"type": "rule", "strokeWidth": 1.3},
                "encoding": {"x": number("low", **values), "x2": {"field": "high"}},
            },
        ],
    }

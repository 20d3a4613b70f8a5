"""The figures of the paper as drawings: published values, ours on top, laid out as published."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from textwrap import wrap
from typing import Any

import pandas as pd

from kvscope.api.figures import charts, theme
from kvscope.api.sections import StudyData
from kvscope.api.wording import traits
from kvscope_paper.comparison import DIFFERS, Comparison
from kvscope_paper.layouts import Layout, Plot, RightAxis
from kvscope_paper.of_runs import draw_runs
from kvscope_paper.published.figures import PASS
from kvscope_paper.series_look import COLUMN, INK, Look, ordered, remark_lines

HEIGHT = 170
FEW_PASSES = 20  # whose numbers stand below an axis
THIN = 0.9  # px, of what the axis on the right is for
AXIS_PX = 62  # beside a plot, for the numbers of its axis
GAP_PX = 22  # between plots
MOST_BESIDE = 3  # plots
BARS, LINES = "Bars: published.", "Lines: published."
AS_TIMED = "Times are as the paper's clock reads them."
EXPECTED = (
    "Whiskers: where 95 % of published times are expected, by the model's errors in other figures."
)
REPEATS = "Whiskers: 95 % interval of the mean of repeats."
NOT_IN_PAPER = "Not in the paper's figure: published with its artifact."
RIM = "Red rim: counts that are not equal, times further apart than the paper's repeats."
OURS = {"type": "point", "filled": True, "size": 60, "strokeWidth": 1.2}


@dataclass(frozen=True)
class Figure:
    """Figure of the paper: its layout, its compared values, and its drawings."""

    layout: Layout
    found: tuple[Comparison, ...]
    drawings: tuple[charts.Drawing, ...]


def figures(
    layouts: Sequence[Layout], found: Sequence[Comparison], study: StudyData
) -> Iterator[Figure]:
    """The figures that there is something to draw for."""
    for layout in layouts:
        of_layout = tuple(
            comparison for comparison in found if comparison.point.table.figure == layout.figure
        )
        of_runs = layout.runs and draw_runs(layout.runs, study)
        if drawn := (*([of_runs] if of_runs else []), *_compared(layout, of_layout)):
            yield Figure(layout, of_layout, drawn)


@dataclass(frozen=True)
class Panel:
    """One plot of a figure: its words, the values on its left axis, and those on its right."""

    plot: Plot
    title: str
    rows: pd.DataFrame
    right: pd.DataFrame
    in_paper: bool


def _compared(layout: Layout, comparisons: Sequence[Comparison]) -> Iterator[charts.Drawing]:
    """The plots that compare values: those of the paper's figure, then those of its artifact."""
    panels = [
        panel
        for plot in layout.plots
        for panel in _panels(
            plot,
            [
                comparison
                for comparison in comparisons
                if comparison.point.table.title in plot.tables
            ],
        )
    ]
    if not panels:
        return
    titles = list(dict.fromkeys(panel.title for panel in panels))
    panels.sort(key=lambda panel: titles.index(panel.title))
    series = _series(pd.concat([panel.rows for panel in panels]))
    for in_paper in (True, False):
        if of_source := [panel for panel in panels if panel.in_paper == in_paper]:
            remarks = _remarks(of_source) | (set() if in_paper else {NOT_IN_PAPER})
            yield _drawing(of_source, series, sorted(remarks))


def _remarks(panels: Sequence[Panel]) -> set[str]:
    rows = pd.concat([frame for panel in panels for frame in (panel.rows, panel.right)])
    notes = {BARS if panel.plot.mark == "bars" else LINES for panel in panels}
    notes |= {f"Marks: {device}." for device in rows["device"]}
    notes |= {words for words in rows["whiskers"] if words}
    if rows["unit"].isin(["s", "tokens/s"]).any():
        notes.add(AS_TIMED)
    return notes | ({RIM} if (rows["verdict"] == DIFFERS).any() else set())


def _drawing(
    panels: Sequence[Panel], series: Sequence[str], remarks: Sequence[str]
) -> charts.Drawing:
    beside = min(MOST_BESIDE, len(panels))
    across = COLUMN if beside == 1 else charts.PAPER
    each = (across - GAP_PX * (beside - 1)) // beside
    look = Look(series, [name for name in series if _has(panels, name)], across)
    data: dict[str, pd.DataFrame] = {}
    cells = [_cell(panel, look, each, f"plot{n}", data) for n, panel in enumerate(panels)]
    chart = charts.grid(cells, beside)
    chart["resolve"]["scale"] |= {"xOffset": "independent"}
    return charts.Drawing((charts.View(chart, data),), remarks=remark_lines(remarks, across))


def _has(panels: Sequence[Panel], name: str) -> bool:
    return any((panel.rows["colour"] == name).any() for panel in panels)


def _cell(
    panel: Panel, look: Look, across: int, name: str, data: dict[str, pd.DataFrame]
) -> charts.Spec:
    """A plot with its axes; its tables go into `data`."""
    plot = panel.plot
    width = across - AXIS_PX * (2 if plot.right else 1)
    data[name] = panel.rows
    title = {"text": wrap(panel.title, round(width / charts.LETTER)), "fontWeight": "normal"}
    cell: charts.Spec = {
        "data": {"name": name},
        **({"title": title} if panel.title else {}),
        "width": width,
        "height": HEIGHT,
        "layer": (_bars if plot.mark == "bars" else _lines)(plot, panel.rows, look, width),
    }
    if plot.right is None or (plot.right.table and panel.right.empty):
        return cell
    left = {"layer": cell["layer"]}
    if plot.right.of is not None:
        right = _share(plot.right)
    else:
        data[f"{name}right"] = panel.right
        right = {"data": {"name": f"{name}right"}, "layer": _right(plot, panel, look, width)}
    return cell | {"layer": [left, right], "resolve": {"scale": {"y": "independent"}}}


def _share(right: RightAxis) -> charts.Spec:
    """The axis alone, whose marks are those of the left axis."""
    share = {"title": right.title, "axis": {"orient": "right", "grid": False, "tickCount": 4}}
    return {
        "transform": [{"calculate": f"100 * datum.published / {right.of}", "as": "share"}],
        "mark": {"type": "point", "opacity": 0},
        "encoding": {
            "y": charts.number("share", **share, scale={"domain": [0, 100], "nice": False})
        },
    }


def _right(plot: Plot, panel: Panel, look: Look, width: int) -> list[charts.Spec]:
    """A thin line through the published values on the right, and ours as small marks."""
    assert plot.right
    x = {"x": _x(plot, panel.rows, width)}
    y = {"title": plot.right.title, "axis": {"orient": "right", "grid": False, "format": ",d"}}
    drawn = panel.right["colour"].nunique() > 1
    colour = {"color": look.line, **look.dash} if drawn else {"color": {"value": INK}}
    return [
        {
            "mark": {"type": "line", "strokeWidth": THIN, "opacity": 0.8},
            "encoding": {**x, "y": charts.number("published", **y), **colour},
        },
        {
            "transform": [{"filter": "isValid(datum.ours)"}],
            "mark": {"type": "point", "size": 14, "strokeWidth": THIN, "opacity": 1},
            "encoding": {
                **x,
                "y": charts.number("ours", **y),
                "color": colour["color"],
                "stroke": _rim(colour),
            },
        },
    ]


def _series(rows: pd.DataFrame) -> list[str]:
    """Names of all series: by their number if they have one, or else the known ones first."""
    if rows["rank"].notna().all():
        return list(dict.fromkeys(rows.sort_values("rank")["colour"]))
    return ordered(list(dict.fromkeys(rows["colour"])))


def _panels(plot: Plot, comparisons: Sequence[Comparison]) -> Iterator[Panel]:
    """Each plot with its values; those that the paper's figure shows first."""
    comparisons = sorted(comparisons, key=lambda comparison: not comparison.point.in_paper)
    titles = dict.fromkeys(_words(comparison, plot.panel, plot) for comparison in comparisons)
    for title in titles:
        of_panel = [
            comparison
            for comparison in comparisons
            if _words(comparison, plot.panel, plot) == title
        ]
        left = [comparison for comparison in of_panel if comparison.point.table.title in plot.table]
        right = [
            comparison for comparison in of_panel if comparison.point.table.title not in plot.table
        ]
        if left:
            in_paper = any(comparison.point.in_paper for comparison in left)
            yield Panel(plot, title, _rows(left, plot), _rows(right, plot), in_paper)


def _rows(comparisons: Sequence[Comparison], plot: Plot) -> pd.DataFrame:
    """A row a value; `first` is that of the first device, as the published value is the same."""
    rows = pd.DataFrame([_row(comparison, plot) for comparison in comparisons])
    return rows if rows.empty else rows.assign(first=~rows.duplicated(["x", "colour"]))


def _row(comparison: Comparison, plot: Plot) -> dict[str, Any]:
    whiskers, low, high = _whiskers(comparison)
    return {
        "x": comparison.point.x if _is_number(plot, comparison) else _x_words(comparison, plot),
        "colour": _words(comparison, plot.colour, plot) or "published",
        "rank": _rank(comparison, plot),
        "published": comparison.point.value,
        "ours": comparison.as_timed,
        "low": low,
        "high": high,
        "device": comparison.device,
        "whiskers": whiskers,
        "verdict": comparison.verdict,
        "measure": comparison.point.table.title,
        "unit": comparison.unit,
    }


def _whiskers(comparison: Comparison) -> tuple[str, float | None, float | None]:
    """The words for the interval that is drawn, and its ends; none where there is no interval."""
    if not math.isnan(comparison.expected_low):
        return EXPECTED, comparison.expected_low, comparison.expected_high
    if (
        comparison.modeled
        or math.isnan(comparison.ci_low)
        or comparison.as_timed != comparison.value
    ):
        return "", None, None
    return REPEATS, comparison.ci_low, comparison.ci_high


def _rank(comparison: Comparison, plot: Plot) -> float:
    """The number of the series, if its colour is that of a numeric setting."""
    value = comparison.point.settings.get(plot.colour[0]) if len(plot.colour) == 1 else None
    return float(value) if isinstance(value, int | float) else math.nan


def _is_number(plot: Plot, comparison: Comparison) -> bool:
    return plot.mark == "lines" and not isinstance(comparison.point.x, str)


def _x_words(comparison: Comparison, plot: Plot) -> str:
    if plot.x == PASS:
        return f"{comparison.point.x + 1}"
    value = comparison.point.settings.get(plot.x)
    if label := plot.x_labels.get(str(value)):
        return label
    return f"{value:,}" if isinstance(value, int) else traits.value_words(value)


def _words(comparison: Comparison, keys: Sequence[str], plot: Plot) -> str:
    """The settings of these keys that an experiment names, in words."""
    given = {
        key: value for key in keys if (value := comparison.point.settings.get(key)) is not None
    }
    joined = ", ".join(str(value) for value in given.values())
    return plot.labels.get(joined) or ", ".join(_setting(*setting) for setting in given.items())


def _setting(key: str, value: Any) -> str:
    if key.endswith(".path"):
        return PurePosixPath(str(value)).stem
    return traits.value_words(value) if key.endswith(".name") else traits.setting_words(key, value)


def _y(plot: Plot, rows: pd.DataFrame) -> charts.Spec:
    """The axis on the left, with its unit."""
    measure, unit = rows["measure"].iloc[0], rows["unit"].iloc[0]
    plain = f"{measure} (%)" if unit == "share" else str(measure)
    words = plain if unit in ("share", "count", "passes") else f"{measure} ({unit})"
    axis: charts.Spec = {"format": "%"} if unit == "share" else {}
    shown: charts.Spec = {
        "title": wrap(plot.y_title or words, round(HEIGHT / charts.LETTER)),
        "axis": axis,
    }
    if plot.right and plot.right.of is not None:
        ticks = [share * plot.right.of for share in (0, 0.25, 0.5, 0.75, 1)]
        shown |= {"scale": {"domain": [0, plot.right.of], "nice": False}}
        axis |= {"values": ticks, "format": ",d"}
    return shown


def _x(plot: Plot, rows: pd.DataFrame, width: int) -> charts.Spec:
    """The axis below: of numbers for lines, of words for bars, slanted where they need room."""
    if not isinstance(rows["x"].iloc[0], str):
        kind = {"type": "log", "base": 2} if plot.logarithmic else {"zero": False}
        scale = kind | {"nice": False, "padding": 6}  # px, so that no mark lies on the axis
        axis: charts.Spec = {}
        if plot.x == PASS and rows["x"].max() < FEW_PASSES:  # counted from 1, as the paper does
            axis = {"values": [0, *range(4, FEW_PASSES, 5)], "labelExpr": "datum.value + 1"}
        return charts.number("x", title=plot.x_title, scale=scale, axis=axis)
    names = list(dict.fromkeys(rows["x"]))
    if len(plot.x_labels) > 1:
        names = [label for label in plot.x_labels.values() if label in names]
    slanted = charts.LETTER * sum(map(len, names)) > width
    axis = {"labelAngle": -40 if slanted else 0}
    return charts.text("x", title=plot.x_title, sort=names, axis=axis)


def _bars(plot: Plot, rows: pd.DataFrame, look: Look, width: int) -> list[charts.Spec]:
    """A bar for a published value; on it ours, an interval and a mark for each device."""
    beside: charts.Spec = {"x": _x(plot, rows, width)}
    if rows.groupby("x")["colour"].nunique().max() > 1:
        beside["xOffset"] = charts.text("colour", sort=list(look.names))
    scale = {"scale": {"type": "symlog"}} if plot.logarithmic else {}
    y = _y(plot, rows) | scale
    encoding = {**beside, "y": charts.number("published", **y), "color": look.colour, **look.shade}
    return [
        {
            "transform": [
                {"filter": "datum.first"}
            ],  # one, also where devices are beside each other
            "mark": {"type": "bar"},
            "encoding": {**encoding, **_tooltip(plot)},
        },
        *_ours(beside, y, {"color": {"value": INK}}, rows, plot),
    ]


def _lines(plot: Plot, rows: pd.DataFrame, look: Look, width: int) -> list[charts.Spec]:
    """A line through the published values of a series; ours as marks of its colour."""
    x = {"x": _x(plot, rows, width)}
    y = {"scale": {"zero": False}} | _y(plot, rows)
    encoding = {**x, "y": charts.number("published", **y), "color": look.line, **look.dash}
    return [
        {
            "mark": {"type": "line", "opacity": 0.75},
            "encoding": {**encoding, **_tooltip(plot)},
        },
        *_ours(x, y, {"color": look.line}, rows, plot),
    ]


def _ours(
    place: charts.Spec, y: charts.Spec, colour: charts.Spec, rows: pd.DataFrame, plot: Plot
) -> list[charts.Spec]:
    devices = list(dict.fromkeys(rows["device"]))
    shapes = {"domain": devices, "range": list(theme.SHAPES[3:] + theme.SHAPES[:3])}
    shape = charts.text("device", scale=shapes) | ({} if len(devices) > 1 else {"legend": None})
    return [
        {
            "transform": [{"filter": "isValid(datum.low)"}],
            "mark": {"type": "rule", "strokeWidth": 1.2},
            "encoding": {
                **place,
                "y": charts.number("low", **y),
                "y2": {"field": "high"},
                **colour,
            },
        },
        {
            "transform": [{"filter": "isValid(datum.ours)"}],
            "mark": OURS,
            "encoding": {
                **place,
                "y": charts.number("ours", **y),
                "shape": shape,
                "stroke": _rim({"color": {"value": "white"}}),
                **colour,
                **_tooltip(plot),
            },
        },
    ]


def _rim(otherwise: charts.Spec) -> charts.Spec:
    """A red stroke where values differ, and else that of the given channel `color`."""
    test = {"test": f"datum.verdict == '{DIFFERS}'", "value": theme.DIFFERENT}
    return {"condition": test, **otherwise["color"]}


def _tooltip(plot: Plot) -> charts.Spec:
    return {
        "tooltip": [
            charts.text("colour"),
            charts.text("x", title=plot.x_title),
            charts.number("published"),
            charts.number("ours"),
        ]
    }

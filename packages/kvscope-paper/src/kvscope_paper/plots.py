"""The figures of the paper as drawings: published values, ours on top, laid out as published."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

import pandas as pd

from kvscope.report import theme
from kvscope.report.data import StudyData
from kvscope.report.figures import registry
from kvscope.report.figures.figure import (
    PAPER,
    Drawing,
    Spec,
    View,
    colour_channel,
    colours,
    grid,
    heading,
    number,
    text,
)
from kvscope.report.settings import names, traits, varied_settings
from kvscope.report.theme import PALETTE, SHAPES
from kvscope.report.words import setting_words, value_words
from kvscope_paper.comparison import DIFFERS, Comparison
from kvscope_paper.layouts import Layout, OfRuns, Plot
from kvscope_paper.published.figures import PASS

HEIGHT = 170
AXIS_PX = 62  # beside a plot, for the numbers of its axis
MOST_BESIDE = 3  # plots
BARS = "Bars: published. Marks: ours, as the paper's clock reads it."
LINES = "Lines: published. Marks: ours, as the paper's clock reads it."
EXPECTED = (
    "Whiskers: where 95 % of published times are expected, by the model's errors in other figures."
)
REPEATS = "Whiskers: 95 % interval of the mean of repeats."
RIM = "Red rim: they differ by more than repeats of the paper do, or counts at all."
OURS = {"type": "point", "filled": True, "size": 60, "strokeWidth": 1.2}


@dataclass(frozen=True)
class Figure:
    """A figure of the paper: its layout, what is compared in it, and its drawings."""

    layout: Layout
    found: tuple[Comparison, ...]
    drawings: tuple[Drawing, ...]


def figures(
    layouts: Sequence[Layout], found: Sequence[Comparison], study: StudyData
) -> Iterator[Figure]:
    """The figures that there is something to draw for."""
    for layout in layouts:
        own = tuple(one for one in found if one.point.table.figure == layout.figure)
        drawings = [_compared(layout, own), _of_runs(layout.runs, study)]
        if drawn := tuple(one for one in drawings if one is not None):
            yield Figure(layout, own, drawn)


def _compared(layout: Layout, found: Sequence[Comparison]) -> Drawing | None:
    """All plots of a figure that compare values, or None without any."""
    panels = [
        (plot, title, rows)
        for plot in layout.plots
        for title, rows in _panels(plot, [one for one in found if _is_in(one, plot)])
    ]
    if not panels:
        return None
    series = _series(pd.concat([rows for _, _, rows in panels]))
    hues = colour_channel(series)
    if len(series) > len(PALETTE):
        hues = hues | {"scale": colours(series) | {"scheme": "viridis"}}
    beside = min(MOST_BESIDE, len(panels))
    cells, data = [], {}
    for place, (plot, title, rows) in enumerate(panels):
        name = f"plot{place}"
        data[name] = rows
        width = PAPER * (plot.width or 1 / beside) - AXIS_PX
        cells.append(
            {
                "data": {"name": name},
                **heading(plot.heading or _measure(rows), title),
                "width": round(width),
                "height": HEIGHT,
                "layer": (_bars if plot.mark == "bars" else _lines)(plot, rows, hues),
            }
        )
    remarks = {BARS if plot.mark == "bars" else LINES for plot, _, _ in panels}
    if any(one.verdict == DIFFERS for one in found):
        remarks.add(RIM)
    remarks |= {words for one in found for words, *_ in [_whiskers(one)] if words}
    chart = grid(cells, beside)
    chart["resolve"]["scale"] |= {"xOffset": "independent"}
    return Drawing((View(chart, data),), remarks=tuple(sorted(remarks)))


def _series(rows: pd.DataFrame) -> list[str]:
    """The names of all series: by their number if they have one, or else as published."""
    ordered = rows.sort_values("rank") if rows["rank"].notna().all() else rows
    return list(dict.fromkeys(ordered["colour"]))


def _is_in(one: Comparison, plot: Plot) -> bool:
    return one.point.table.title == plot.table


def _panels(plot: Plot, found: Sequence[Comparison]) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows of each plot, with its words."""
    titles = dict.fromkeys(_words(one, plot.panel) for one in found)
    for title in titles:
        own = [one for one in found if _words(one, plot.panel) == title]
        yield title, pd.DataFrame([_row(one, plot) for one in own])


def _row(one: Comparison, plot: Plot) -> dict[str, Any]:
    _, low, high = _whiskers(one)
    return {
        "x": one.point.x if _is_number(plot, one) else _x_words(one, plot),
        "colour": _words(one, plot.colour) or "published",
        "rank": _rank(one, plot),
        "published": one.point.value,
        "ours": one.as_timed,
        "low": low,
        "high": high,
        "device": one.device,
        "verdict": one.verdict,
        "measure": one.point.table.title,
        "unit": one.unit,
    }


def _whiskers(one: Comparison) -> tuple[str, float | None, float | None]:
    """The words for the interval that is drawn, and its ends; none where there is no interval."""
    if not math.isnan(one.expected_low):
        return EXPECTED, one.expected_low, one.expected_high
    if one.modeled or math.isnan(one.ci_low) or one.as_timed != one.value:
        return "", None, None
    return REPEATS, one.ci_low, one.ci_high


def _rank(one: Comparison, plot: Plot) -> float:
    """The number of the series, if its colour is that of a numeric setting."""
    value = one.point.settings.get(plot.colour[0]) if len(plot.colour) == 1 else None
    return float(value) if isinstance(value, int | float) else math.nan


def _is_number(plot: Plot, one: Comparison) -> bool:
    return plot.mark == "lines" and not isinstance(one.point.x, str)


def _x_words(one: Comparison, plot: Plot) -> str:
    value = one.point.x if plot.x in (one.point.table.x, PASS) else one.point.settings.get(plot.x)
    if label := plot.x_labels.get(str(value)):
        return label
    return f"{value:,}" if isinstance(value, int) else value_words(value)


def _words(one: Comparison, keys: Sequence[str]) -> str:
    """The settings of these keys that an experiment names, in words."""
    settings = one.point.settings
    return ", ".join(
        PurePosixPath(str(settings[key])).stem
        if key.endswith(".path")
        else value_words(settings[key])
        if key.endswith(".name")
        else setting_words(key, settings[key])
        for key in keys
        if settings.get(key) is not None
    )


def _measure(rows: pd.DataFrame) -> str:
    measure, unit = rows["measure"].iloc[0], rows["unit"].iloc[0]
    return str(measure) if unit in ("share", "count", "passes") else f"{measure} ({unit})"


def _bars(plot: Plot, rows: pd.DataFrame, hues: Spec) -> list[Spec]:
    """A bar for a published value; on it ours, an interval and a mark for each device."""
    x = text("x", title=plot.x_title, sort=list(dict.fromkeys(rows["x"])), axis={"labelAngle": 0})
    beside = {"x": x, "xOffset": text("colour", sort=list(dict.fromkeys(rows["colour"])))}
    scale = {"scale": {"type": "symlog"}} if plot.logarithmic else {}
    y = {"title": None, **scale}
    return [
        {
            "mark": {"type": "bar", "opacity": 0.55},
            "encoding": {**beside, "y": number("published", **y), "color": hues, **_tooltip(plot)},
        },
        *_ours(beside, y, {"color": {"value": "#1d2530"}}, rows, plot),
    ]


def _lines(plot: Plot, rows: pd.DataFrame, hues: Spec) -> list[Spec]:
    """A line through the published values of a series; ours as marks of its colour."""
    scale = {"type": "log", "base": 2} if plot.logarithmic else {"zero": False}
    numbers = not isinstance(rows["x"].iloc[0], str)
    x = {"x": (number if numbers else text)("x", title=plot.x_title, scale=scale)}
    y = {"title": None}
    return [
        {
            "mark": {"type": "line", "opacity": 0.75},
            "encoding": {**x, "y": number("published", **y), "color": hues, **_tooltip(plot)},
        },
        *_ours(x, y, {"color": hues}, rows, plot),
    ]


def _ours(place: Spec, y: Spec, colour: Spec, rows: pd.DataFrame, plot: Plot) -> list[Spec]:
    devices = list(dict.fromkeys(rows["device"]))
    shapes = {"domain": devices, "range": list(SHAPES[3:] + SHAPES[:3])}
    shape = text("device", scale=shapes) | ({} if len(devices) > 1 else {"legend": None})
    return [
        {
            "transform": [{"filter": "isValid(datum.low)"}],
            "mark": {"type": "rule", "strokeWidth": 1.2},
            "encoding": {**place, "y": number("low", **y), "y2": {"field": "high"}, **colour},
        },
        {
            "transform": [{"filter": "isValid(datum.ours)"}],
            "mark": OURS,
            "encoding": {
                **place,
                "y": number("ours", **y),
                "shape": shape,
                "stroke": _rim(),
                **colour,
                **_tooltip(plot),
            },
        },
    ]


def _rim() -> Spec:
    return {
        "condition": {"test": f"datum.verdict == '{DIFFERS}'", "value": theme.DIFFERENT},
        "value": "white",
    }


def _tooltip(plot: Plot) -> Spec:
    return {
        "tooltip": [
            text("colour"),
            text("x", title=plot.x_title),
            number("published"),
            number("ours"),
        ]
    }


def _of_runs(asked: OfRuns | None, study: StudyData) -> Drawing | None:
    """A figure of kvscope for the experiments that a figure of the paper is about."""
    if asked is None:
        return None
    runs = tuple(run for run in study.complete if asked.fits(run.settings))
    if not runs:
        return None
    apart = names(traits(varied_settings([run.settings for run in runs])))
    shown = tuple(
        replace(run, label=own or run.label) for run, own in zip(runs, apart, strict=True)
    )
    drawing = registry.draw_figure(replace(study, runs=shown, figures=()), asked.figure)
    return drawing and replace(drawing, views=drawing.views[:1])

"""Figures: one declaration gives the chart on the page, the PDF and the PNG.

Charts are Vega-Lite specifications (https://vega.github.io/vega-lite/docs/) as Python mappings.
They name their tables; data and looks are added where they are drawn.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import pandas as pd

from kvscope.metrics.measure import Measure, measures
from kvscope.plan.figures import Axes
from kvscope.report.data import StudyData

PAPER = 700  # pixels of 1/96 inch across: two columns of a paper
NUMBER = ",.7~g"  # of a tick: 1,000; 0.05; no exponent where it can be read without
LETTER = 5.6  # pixels of a label's letter
TITLE_LETTERS = 44  # in a line above a plot
FADED = 0.12  # opacity of what was not picked in the legend
POINT, RING = 40, 0.75  # px² of a point, and how much wider each of those under another one is
RINGS = "a ring: other points cover it"
MANY = 40  # points in a plot, or names of colours: more cannot be told apart
COINCIDE = 0.03  # share by which values differ whose points cover one another

# What a figure makes of the axes that a study declares for it.
ROW_EACH = "a row of plots for each"
FIRST_AXES = "`colour`, `facet` and `where` of the first; a point or line for each experiment"
SELECTED = "experiments that `where` selects"
NO_AXES = "–"

Spec = dict[str, Any]


@dataclass(frozen=True)
class View:
    """One state of a figure: a chart, and the tables it draws by the names it gives them.

    `choice` says which state it is, a text for each heading of the drawing; `remarks` stand above
    the chart.
    """

    chart: Spec
    data: dict[str, pd.DataFrame]
    choice: tuple[str, ...] = ()
    note: str = ""
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Drawing:
    """The views of a figure: the first is printed, and the page offers the others.

    `label_px` is the room beside each plot that its axis labels take.
    """

    views: tuple[View, ...]
    headings: tuple[str, ...] = ()
    label_px: int = 60
    remarks: tuple[str, ...] = ()


# Of a study, and the axes that it declares for the figure: none, or those of each row of charts.
# None where the study has no data for the figure.
Draw = Callable[[StudyData, Sequence[Axes]], Drawing | None]


@dataclass(frozen=True)
class Lead:
    """Lead of a figure: its first metric, the drawing of it alone, and its whole panel."""

    metric: str
    draw: Draw
    panel: tuple[str, ...]

    @property
    def measure(self) -> Measure:
        """The metric's declaration."""
        return measures()[self.metric]


@dataclass(frozen=True)
class Figure:
    """A figure of a study; its name is that of its entry point in the group `kvscope.figure`.

    `axes` says what it makes of declared axes, `order` where it stands among the charts of a page,
    unless a section of the page is of it alone. One with a `lead` can open the page. `faults` gives
    sentences on data of a study that it does not show.
    """

    title: str
    caption: str
    draw: Draw
    order: int
    axes: str = NO_AXES
    lead: Lead | None = None
    faults: Callable[[StudyData], Sequence[str]] = lambda _: ()


def number(field: str, **more: Any) -> Spec:
    """A channel that shows a column of numbers."""
    return {"field": field, "type": "quantitative", **more}


def text(field: str, **more: Any) -> Spec:
    """A channel that shows a column of texts."""
    return {"field": field, "type": "nominal", **more}


def constant(name: str, **more: Any) -> Spec:
    """A channel that shows one text for all rows, which the legend explains."""
    return {"datum": name, "type": "nominal", **more}


def colours(names: Sequence[str], hues: Sequence[str] | None = None) -> Spec:
    """A scale of these names, with the palette's colours or their own."""
    return {"domain": list(names)} | ({"range": list(hues)} if hues else {})


def colour_channel(names: Sequence[str], column: str = "colour") -> Spec:
    """Colours by a column of texts, with a legend of as many columns as the names allow.

    Of more than MANY names there is no legend: a plot of each has it as its title.
    """
    columns = max(1, min(len(names), PAPER // (30 + round(LETTER * max(map(len, names))))))
    legend = {"columns": columns} if 1 < len(names) <= MANY else None
    return text(column, scale=colours(names), legend=legend)


def shape_channel(names: Sequence[str]) -> Spec:
    """Shapes by the column `colour`, in the legend of the colours; nothing for a single name."""
    if len(names) < 2:
        return {}
    legend = {} if len(names) <= MANY else {"legend": None}
    return {"shape": text("colour", scale=colours(names), **legend)}


def heading(title: str, subtitle: str = "") -> Spec:
    """A plot's title, in lines that fit; nothing without words."""
    above, below = (wrap(words, TITLE_LETTERS) for words in (title, subtitle))
    return {"title": {"text": above, "subtitle": below}} if above or below else {}


def plot_width(columns: int, label_px: int) -> int:
    """Width of a plot's inner part where `columns` plots stand beside each other on paper."""
    return PAPER // columns - label_px


def grid(cells: Sequence[Spec], columns: int, picked: str | None = None) -> Spec:
    """Cells row by row, with one legend; a click in it picks values of the column `picked`."""
    if picked:  # one mark has to own what all of them follow
        owner = cells[0]["layer"][0] if "layer" in cells[0] else cells[0]
        select = {"type": "point", "fields": [picked]}
        owner["params"] = [{"name": "picked", "select": select, "bind": "legend"}]
    return {
        "concat": list(cells),
        "columns": columns,
        "resolve": {"scale": {"color": "shared", "shape": "shared"}},
    }


def first_plots(
    cells: Sequence[Spec], data: dict[str, pd.DataFrame], most: int
) -> tuple[Sequence[Spec], dict[str, pd.DataFrame], tuple[str, ...]]:
    """At most `most` cells, the tables that they draw, and a remark on the cells left out."""
    kept, others = cells[:most], cells[most:]
    if not others:
        return cells, data, ()
    unused = {cell["data"]["name"] for cell in others} - {cell["data"]["name"] for cell in kept}
    kept_data = {name: frame for name, frame in data.items() if name not in unused}
    return kept, kept_data, plots_left_out(most, len(cells))


def plots_left_out(most: int, count: int) -> tuple[str, ...]:
    """A remark if not all plots are shown."""
    return (f"The first {most} of {count} plots are shown.",) if count > most else ()


def is_wide(values: Sequence[float], ratio: float = 7.0) -> bool:
    """Whether positive values spread further than `ratio`, and a linear axis would hide some."""
    return bool(values) and 0 < min(values) * ratio < max(values)


def log_ticks(low: float, high: float) -> list[float]:
    """Ticks from `low` to `high` (> 0): 1, 2 and 5 of each decade, or decades if there are many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    decades = last - first
    steps = (1, 2, 5) if decades <= 2 else (1,)
    every = -(-decades // 8)
    ticks = [step * 10.0**power for power in range(first, last + 1, every) for step in steps]
    return [tick for tick in ticks if low <= tick <= high]


def widen_covered(points: pd.DataFrame, x: str, y: str) -> pd.DataFrame:
    """The points with their `size` in px², the widest first.

    Of points that cover one another, those of the first colours are wider. Many points are small.
    """
    if len(points) > MANY:
        return points.assign(size=POINT / 2)
    order = {name: place for place, name in enumerate(dict.fromkeys(points["colour"]))}
    ordered = points.sort_values([x, y])
    apart = ordered[x].diff().ne(0) | (ordered[y].diff() > COINCIDE * ordered[y].abs())
    covering = ordered.assign(rank=ordered["colour"].map(order)).groupby(apart.cumsum())["rank"]
    depth = covering.rank(ascending=False, method="first") - 1
    sizes = POINT * (1 + RING * depth) ** 2
    return points.assign(size=sizes).sort_values("size", ascending=False, ignore_index=True)


def has_rings(points: pd.DataFrame) -> bool:
    """Whether some points were widened."""
    return "size" in points and bool((points["size"] > POINT).any())


PICKED = {"condition": {"param": "picked", "value": 1}, "value": FADED}

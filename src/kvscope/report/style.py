"""How figures look: one palette for paper and page, one style for everything printed."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase, SubFigure

from kvscope.files import atomic_path

# Okabe and Ito's palette, told apart under every common colour blindness; yellow is left out
# because it vanishes on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6B6B6B", "#000000")
LINES = ("solid", "dashed", "dotted")
MARKERS = ("o", "s", "^")

PREFILL, DECODE = "#E69F00", "#0072B2"
KV_BLOCKS, KV_TOKENS, HOST_BLOCKS = "#0072B2", "#56B4E9", "#CC79A7"
RUNNING, WAITING = "#009E73", "#8A8A8A"
PREEMPTED, RESUMED, STALLED = "#D55E00", "#009E73", "#CC79A7"
NAMED = {
    "prefill": PREFILL,
    "decode": DECODE,
    "blocks": KV_BLOCKS,
    "tokens": KV_TOKENS,
    "host": HOST_BLOCKS,
    "running": RUNNING,
    "waiting": WAITING,
    "preempted": PREEMPTED,
    "resumed": RESUMED,
    "stalled": STALLED,
}

COLUMN_IN = 7.0  # two columns of a paper
PNG_DPI = 200
_RC: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["Helvetica", "Arial", "Liberation Sans", "DejaVu Sans"],
    "font.size": 8.0,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8.0,
    "axes.titlelocation": "left",
    "axes.linewidth": 0.7,
    "axes.edgecolor": "#444444",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.6,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "lines.linewidth": 1.3,
    "lines.markersize": 4.5,
    "text.parse_math": False,  # a label is text, whatever it has in it
    "hatch.linewidth": 0.6,
    "pdf.fonttype": 42,  # text stays text
    "savefig.dpi": PNG_DPI,
    "figure.constrained_layout.use": True,
}


@contextmanager
def style() -> Iterator[None]:
    """Matplotlib in kvscope's style, whatever the user's settings are."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_RC)  # type: ignore[arg-type]
        yield


def colour(number: int) -> str:
    """Colour of the series of this number."""
    return PALETTE[number % len(PALETTE)]


def cycle(number: int) -> int:
    """How often the palette was used up before this series: picks line style and marker."""
    return number // len(PALETTE)


def grid_of(
    rows: int, columns: int, height: float, shared: Literal["all", "none"] = "none"
) -> tuple[Figure, list[Axes]]:
    """A figure of `rows` × `columns` axes, `height` inches a row; the axes row by row."""
    figure = Figure(figsize=(COLUMN_IN, rows * height), layout="constrained")
    return figure, axes_in(figure, rows, columns, shared)


def axes_in(
    part: FigureBase, rows: int, columns: int, shared: Literal["all", "none"] = "none"
) -> list[Axes]:
    """`rows` × `columns` axes in a figure or a part of one; row by row."""
    axes = part.subplots(rows, columns, squeeze=False, sharex=shared, sharey=shared)
    return list(axes.flat)


def stacked(heights: Sequence[float]) -> tuple[Figure, list[SubFigure]]:
    """A figure of parts of these heights in inches, one below the other."""
    figure = Figure(figsize=(COLUMN_IN, sum(heights)), layout="constrained")
    parts = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)
    return figure, list(parts.flat)


def note_above(figure: Figure, text: str) -> None:
    """A small note at the upper right of the figure."""
    figure.suptitle(text, x=0.99, ha="right", fontsize=7, color="#666666")


def modeled_label(figure: Figure) -> None:
    """Say on the figure that a cost model made its times."""
    figure.supxlabel("modeled, not measured", x=0.99, ha="right", fontsize=7, color="#D55E00")


def legend_below(part: FigureBase, axes: Sequence[Axes]) -> None:
    """One legend for a figure or a part of one, outside of all axes, of what they show."""
    shown: dict[str, Any] = {}
    entries = [cell.get_legend_handles_labels() for cell in axes]
    for handles, labels in sorted(entries, key=lambda entry: len(entry[1]), reverse=True):
        shown |= {name: one for name, one in zip(labels, handles, strict=True) if name not in shown}
    if len(shown) > 1:
        columns = legend_columns(list(shown))
        part.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=columns)


def legend_columns(names: Sequence[str]) -> int:
    """As many columns of names as fit into a figure's width."""
    return max(1, min(len(names), 124 // (max(map(len, names)) + 8)))


def save(figure: Figure, path: Path) -> None:
    """Write the figure as PDF or PNG (by the suffix), the same bytes for the same figure."""
    metadata = {"CreationDate": None} if path.suffix == ".pdf" else {"Software": None}
    drawn = io.BytesIO()  # on a full disk, Matplotlib's writers raise anything
    figure.savefig(drawn, format=path.suffix[1:], metadata=metadata)
    with atomic_path(path) as temporary:
        temporary.write_bytes(drawn.getvalue())

"""Which blocks attention writes and reads, and when: the first forward passes of a repeat."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from kvscope.analyse.events import Events, phases_of, read_events, traced_parts
from kvscope.events import K_READ, K_WRITE
from kvscope.report import style
from kvscope.report.data import Run, StudyData
from kvscope.report.figures.figure import StudyFigure, no_chart
from kvscope.report.words import plural
from kvscope.runfile import IMPORTED_FROM

MOST_RUNS = 3
MOST_PASSES = 5
APART = 0.055  # of the axis: requests named along it
NARROWEST = 0.008  # of the axis: what is shorter could not be seen
MOST_EVENTS = 20_000  # in one axes
LETTERS_OF_TICKS = 13  # that fit below a cell
VECTORS = 4_000  # more lines are pixels in the PDF, too
MILLISECOND = 1e-6
GAP = 0.03  # between requests, of all blocks
HEIGHTS = {"writes": 1.0, "reads": 1.9}
NOTHING: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7, "color": "#8A8A8A"}
BREAK = 3.5  # points: half of the mark where time is cut


@dataclass(frozen=True)
class Stack:
    """Where the requests' blocks stand above each other: the first of each, and how many."""

    names: tuple[str, ...]
    first: np.ndarray
    blocks: np.ndarray

    @property
    def top(self) -> float:
        """Above the highest block."""
        return float((self.first + self.blocks).max())


@dataclass(frozen=True)
class Pattern:
    """What is drawn of a run: the first passes of its first repeat, in some layers."""

    run: Run
    events: Events
    passes: dict[int, str]  # and their phases
    layers: list[int]

    @cached_property
    def stack(self) -> Stack:
        """The requests in the order of their numbers."""
        events = self.events
        names = sorted(range(len(events.requests)), key=lambda n: _number(events.requests[n]))
        blocks = np.zeros(len(names), np.int64)
        known = events.request >= 0
        np.maximum.at(blocks, events.request[known], events.block_position[known] + 1)
        first = np.zeros(len(names))
        first[names] = np.cumsum([0.0, *(blocks[names][:-1] + max(1.0, GAP * blocks.sum()))])
        return Stack(events.requests, first, blocks)

    def cell(self, step: int, layer: int, reads: bool) -> Events:
        """The reads or writes of one pass in one layer."""
        events = self.events
        wanted = (events.step == step) & (events.layer == layer) & (events.reads == reads)
        return events.take(wanted & (events.request >= 0))


def traced(study: StudyData) -> list[Run]:
    """The complete experiments that have KV events."""
    return [run for run in study.complete if run.repeats and run.trace]


def pattern(run: Run, most_layers: int) -> Pattern:
    """What is drawn of a traced run: of its layers the first, and the last if two are wanted."""
    assert run.trace
    path, repeat = run.trace.path, run.repeats[0]
    parts = traced_parts(path, repeat)
    passes = dict(list(phases_of(parts).items())[:MOST_PASSES])
    all_layers = sorted(int(layer) for layer in parts["layer"].unique())
    layers = list(dict.fromkeys([all_layers[0], all_layers[-1]]))[:most_layers]
    return Pattern(run, read_events(path, repeat, passes, layers), passes, layers)


def draw(study: StudyData) -> Figure:
    """A part an experiment: a row of axes for a layer's writes and its reads, a column a pass."""
    runs = traced(study)[:MOST_RUNS]
    patterns = [pattern(run, 2 if len(runs) == 1 else 1) for run in runs]
    heights = [0.75 + len(one.layers) * sum(HEIGHTS.values()) for one in patterns]
    figure, parts = style.stacked(heights)
    shares = [_draw_run(part, one) for part, one in zip(parts, patterns, strict=True)]
    if max(shares) > 1:
        style.note_above(figure, f"up to {max(shares)} events are drawn as one")
    return figure


def _draw_run(part: SubFigure, shown: Pattern) -> int:
    """Draw an experiment; of how many events one is drawn, at most."""
    rows = [(layer, what) for layer in shown.layers for what in HEIGHTS]
    axes = part.subplots(
        len(rows),
        len(shown.passes),
        squeeze=False,
        sharey=True,
        gridspec_kw={"height_ratios": [HEIGHTS[what] for _, what in rows], "wspace": 0.06},
    )
    start_ns, share = int(shown.events.start_ns.min()), 1
    for cells, (layer, what) in zip(axes, rows, strict=True):
        for cell, step in zip(cells, shown.passes, strict=True):
            events = shown.cell(step, layer, reads=what == "reads")
            share = max(share, _draw_cell(cell, events, shown.stack, start_ns))
        cells[0].set_ylabel(f"{what}, layer {layer}")
        cells[0].tick_params(labelleft=what == "reads")
        _cut(cells)
    _label(part, axes, shown)
    return share


def _draw_cell(axes: Axes, events: Events, stack: Stack, origin_ns: int) -> int:
    """A line an event, the K half of a block's height above the V half."""
    share = max(1, -(-len(events) // MOST_EVENTS))
    events = events.take(slice(None, None, share))
    axes.set_ylim(-0.5, stack.top + 0.5)
    if not len(events):
        axes.set_xticks([])
        axes.text(0.5, 0.5, "none traced", transform=axes.transAxes, **NOTHING)
        return share
    first = (events.start_ns - origin_ns) * MILLISECOND
    last = (events.end_ns - origin_ns) * MILLISECOND
    span = last.max() - first.min()
    last = np.maximum(last, first + NARROWEST * span)
    is_k = (events.kind == K_READ) | (events.kind == K_WRITE)
    height = stack.first[events.request] + events.block_position + np.where(is_k, 0.75, 0.25)
    ends = np.stack([np.stack([first, height], 1), np.stack([last, height], 1)], 1)
    width = 0.62 * 72 * (HEIGHTS["reads"] - 0.3) / stack.top
    lines = LineCollection(
        list(ends),
        colors=_colours(events, is_k),
        linewidths=float(np.clip(width, 0.8, 4)),
        capstyle="butt",
        rasterized=len(events) > VECTORS,
    )
    axes.add_collection(lines)
    low, high = float(first.min() - 0.02 * span), float(last.max() + 0.02 * span)
    ticks = [t for t in MaxNLocator(2).tick_values(low, high) if low <= t <= high]
    axes.set_xlim(low, high)
    outer = sorted({ticks[0], ticks[-1]}) if ticks else []  # more have no room
    labels = [f"{tick:.10g}" for tick in outer]
    fitting = len(outer) if len("".join(labels)) <= LETTERS_OF_TICKS else 1
    axes.set_xticks(outer[:fitting], labels[:fitting])
    return share


def _colours(events: Events, is_k: np.ndarray) -> np.ndarray:
    """The colour of each event's request, pale for V."""
    full = np.array([to_rgb(style.colour(n)) for n in range(len(events.requests))])
    pale = 1 - 0.45 * (1 - full)
    return np.where(is_k[:, None], full[events.request], pale[events.request])


def _cut(cells: np.ndarray) -> None:
    """Mark between the passes that time is cut there."""
    mark = [(-1, -1), (1, 1)]
    for number, cell in enumerate(cells):
        sides = [side for side, there in ((0, number), (1, number < len(cells) - 1)) if there]
        cell.spines["left"].set_visible(not number)
        cell.tick_params(axis="y", left=False)
        cell.grid(False, axis="y")
        cell.plot(
            sides, [0] * len(sides), transform=cell.transAxes, marker=mark, markersize=2 * BREAK,
            linestyle="none", color="#444444", markeredgewidth=0.7, clip_on=False,
        )  # fmt: skip


def _label(part: SubFigure, axes: np.ndarray, shown: Pattern) -> None:
    """Say which passes, requests and kinds the parts of the drawing are."""
    for cell, (step, phase) in zip(axes[0], shown.passes.items(), strict=True):
        cell.set_title(f"pass {step}: {phase}")
    axes[0][0].set_yticks(*_names(shown.stack), fontsize=6.5)
    part.supxlabel(f"time since the first access shown (ms{clock_note(shown.run)})", fontsize=8)
    part.align_ylabels(axes[:, 0])
    if shown.run.label:
        part.suptitle(shown.run.label, x=0.01, ha="left", fontsize=8.5)
    handles = [Line2D([], [], color=shade, linewidth=4) for shade in ("#444444", "#ACACAC")]
    kinds = ["K, upper half of a block", "V, lower half, paler"]
    part.legend(handles, kinds, loc="outside upper right", ncols=2)


def _names(stack: Stack) -> tuple[list[float], list[str]]:
    """Heights of the requests' middles, and their names; those too close to another have none."""
    heights: list[float] = []
    names: list[str] = []
    for n in np.argsort(stack.first):
        height = float(stack.first[n] + stack.blocks[n] / 2)
        if not heights or height - heights[-1] > APART * stack.top:
            heights.append(height)
            names.append(f"request {stack.names[n]}: {plural(int(stack.blocks[n]), 'block')}")
    return heights, names


def clock_note(run: Run) -> str:
    """What to say of the unit of time: that of published device clocks is not certain."""
    published = IMPORTED_FROM in run.facts
    return ", as published; the rate of the device's clock is not certain" if published else ""


def _number(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isdecimal() else (-1, name)


FIGURE = StudyFigure(
    "access_pattern",
    "Accesses to the KV cache",
    f"The first {MOST_PASSES} traced forward passes of the first repeat: each line is one access "
    "of an attention kernel to one block, from its start to its end; short ones are drawn longer, "
    "to be seen. Blocks stand above each other in the order of their place in the request, "
    "requests by their number, each in its colour. Time is cut between the passes, and each axes "
    f"has a scale of its own. Of more than {MOST_EVENTS:,} accesses in one axes an even sample is "
    "drawn, and the figure says so.",
    available=lambda study: bool(traced(study)),
    draw=draw,
    chart=no_chart,
    section="accesses",
)

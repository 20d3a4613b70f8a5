"""How long blocks lie untouched between bursts of accesses, and how far apart reuses are."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from kvscope.actions import copies
from kvscope.analyse.access import Trace
from kvscope.analyse.events import read_events
from kvscope.analyse.reuse import Reuses, reuses_of
from kvscope.report import style
from kvscope.report.data import Run, StudyData
from kvscope.report.figures.access_pattern import traced
from kvscope.report.figures.figure import Chart, StudyFigure

Floats = npt.NDArray[np.float64]

MOST_LINES = 8
POINTS = 500  # of a line
MILLISECOND = 1e-6
IDLE, DISTANCE = "time a block lies untouched (ms)", "other blocks used in between (layer by layer)"
SHARE = "share of reuses at or below (%)"
SHORTEST = 1e-6  # ms: a logarithmic axis has no 0
DECADE = 10.0  # values that spread further stand on a logarithmic axis


@dataclass(frozen=True)
class Distribution:
    """A cumulative distribution: `percent` of the values are at or below `value`."""

    value: Floats
    percent: Floats

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the greatest value."""
        return float(self.value[0]), float(self.value[-1])


@lru_cache(maxsize=MOST_LINES)
def reuses(trace: Trace) -> Reuses:
    """The reuses of blocks in one repeat."""
    return reuses_of(trace.bursts(read_events(trace.path, trace.repeat)))


def shown(study: StudyData) -> list[tuple[Run, Trace]]:
    """The first experiments whose every pass was traced, each with its first repeat's trace."""
    runs = [(run, run.trace.of_repeat(run.repeats[0])) for run in traced(study) if run.trace]
    return [(run, trace) for run, trace in runs if trace.all_passes][:MOST_LINES]


def idle(trace: Trace) -> Distribution | None:
    """Of idle times in ms; None where not all heads were traced, or nothing was reused."""
    return distribution(reuses(trace).idle_ns * MILLISECOND) if trace.all_heads else None


def distance(trace: Trace) -> Distribution | None:
    """Of reuse distances in blocks; None where not all layers were traced."""
    return distribution(reuses(trace).distance_blocks) if trace.all_layers else None


def distribution(values: npt.NDArray[np.generic]) -> Distribution | None:
    """The values' cumulative distribution at no more than POINTS of them; None without any."""
    if not len(values):
        return None
    ordered = np.sort(values).astype(np.float64)
    places = np.unique(np.linspace(0, len(ordered) - 1, POINTS).round().astype(np.int64))
    return Distribution(ordered[places], 100 * (places + 1) / len(ordered))


def swap_in_ms(run: Run) -> float:
    """Device time to copy one block, all its layers, back from the host; NaN if none was."""
    rows = run.preemptions(run.repeats[0])
    rows = rows[(rows["event"] == "resume") & (copies(rows["policy"]))]
    blocks, seconds = float(rows["blocks"].sum()), float(rows["swap_in_s"].sum())
    return 1e3 * seconds / blocks if blocks and seconds else math.nan


def draw(study: StudyData) -> Figure:
    """Idle times at the left, reuse distances at the right; a line an experiment."""
    figure, axes = style.grid_of(1, 2, 2.7)
    _draw_swaps(axes[0], study)
    for cell, of, title, unit in zip(
        axes, (idle, distance), ("Idle time", "Reuse distance"), (IDLE, DISTANCE), strict=True
    ):
        found = [(n, run, of(trace)) for n, (run, trace) in enumerate(shown(study))]
        lines = [(n, run, one) for n, run, one in found if one]
        for number, run, one in lines:
            _draw_line(cell, one, run.label, number)
        cell.set_visible(bool(lines))
        cell.set_title(title)
        cell.set_xlabel(unit)
        cell.set_ylim(0, 103)
        if spread([one for _, _, one in lines]) > DECADE:
            _stretch(cell)
        else:
            cell.set_xlim(left=0)
    axes[0].set_ylabel(SHARE)
    style.legend_below(figure, axes)
    return figure


def spread(lines: Sequence[Distribution]) -> float:
    """The greatest value over the least; 1 without any."""
    ends = [max(end, SHORTEST) for line in lines for end in line.ends]
    return max(ends) / min(ends) if ends else 1.0


def _stretch(axes: Axes) -> None:
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1,) if high / low > 1000 else (1, 2, 5)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


def _draw_swaps(axes: Axes, study: StudyData) -> None:
    for number, (run, _) in enumerate(shown(study)):
        block_ms = swap_in_ms(run)
        if not math.isnan(block_ms):
            axes.axvline(block_ms, color=style.colour(number), linestyle="dotted")


def _draw_line(axes: Axes, found: Distribution, name: str, number: int) -> None:
    value = np.maximum(found.value, SHORTEST)
    axes.step(
        [value[0], *value],
        [0.0, *found.percent],
        where="post",
        color=style.colour(number),
        linestyle=style.LINES[style.cycle(number)],
        label=name,
    )


def chart(study: StudyData) -> Chart:
    """Idle times: a line an experiment, and when a block would be back from the host."""
    lines = [(n, run, found) for n, (run, one) in enumerate(shown(study)) if (found := idle(one))]
    wide = spread([found for _, _, found in lines]) > DECADE
    return {
        "data": [part for n, run, found in lines for part in _parts(run, found, n)],
        "layout": {
            "xaxis": {
                "title": {"text": IDLE},
                "type": "log" if wide else "linear",
                "rangemode": "tozero",
            },
            "yaxis": {"title": {"text": SHARE}, "range": [0, 103]},
            "height": 400,
            "showlegend": True,
        },
        "note": "Reuse distances are in the figure for print.",
    }


def _parts(run: Run, found: Distribution, number: int) -> Iterator[dict[str, object]]:
    line = {"color": style.colour(number), "width": 1.8}
    common = {"type": "scatter", "mode": "lines", "name": run.label, "legendgroup": run.id}
    yield common | {
        "x": np.maximum(found.value, SHORTEST).round(6).tolist(),
        "y": found.percent.round(3).tolist(),
        "line": line | {"shape": "hv"},
        "hovertemplate": "%{y:.1f} % up to %{x:.4g} ms",
    }
    block_ms = swap_in_ms(run)
    if not math.isnan(block_ms):
        yield common | {
            "x": [block_ms, block_ms],
            "y": [0, 100],
            "showlegend": False,
            "line": line | {"dash": "dot"},
            "hovertemplate": "one block swapped in: %{x:.4g} ms",
        }


FIGURE = StudyFigure(
    "access_gaps",
    "How long blocks lie untouched",
    "A block of one layer lies untouched from the end of the last access of one forward pass to "
    "the first access of the next pass that uses it: time in which it could be elsewhere. Its "
    "reuse distance is the number of other blocks, counted layer by layer, that were accessed in "
    f"between. First repeat of the first {MOST_LINES} experiments that trace every pass; dotted: "
    "the time to copy one block, all its layers, back from the host, where the experiment swaps.",
    available=lambda study: any(idle(trace) or distance(trace) for _, trace in shown(study)),
    draw=draw,
    chart=chart,
)

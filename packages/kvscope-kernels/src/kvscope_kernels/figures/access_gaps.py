"""Idle times of blocks between bursts of accesses, and their reuse distances."""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import pandas as pd

from kvscope.api.figures import Axes, charts, curves
from kvscope.api.sections import ReportedRun, StudyData
from kvscope.api.tables import copies
from kvscope_kernels.analyse.access import KvTrace
from kvscope_kernels.analyse.events import read_events
from kvscope_kernels.analyse.reuse import Reuses, reuses_of
from kvscope_kernels.figures.accesses import traced_runs

MOST_LINES = 8
MILLISECOND = 1e-6
IDLE, DISTANCE = "idle time of a block (ms)", "other blocks used in between (layer by layer)"
SHARE = "share of reuses at or below (%)"
SWAPPED_IN = {
    "data": {"name": "swaps"},
    "mark": {"type": "rule", "strokeDash": [2, 3], "strokeWidth": 1.5},
    "encoding": {
        "tooltip": [charts.text("line"), charts.number("x", title="one block copied back (ms)")],
    },
}


@lru_cache(maxsize=MOST_LINES)
def reuses(trace: KvTrace) -> Reuses:
    """The reuses of blocks in one repeat."""
    return reuses_of(trace.bursts(read_events(trace.path, trace.repeat)))


def shown(study: StudyData) -> list[tuple[ReportedRun, KvTrace]]:
    """The first experiments whose every pass was traced, each with its first repeat's trace."""
    return [(run, trace) for run, trace in traced_runs(study) if trace.all_passes][:MOST_LINES]


def idle(trace: KvTrace) -> curves.Distribution | None:
    """Distribution of idle times in ms; None unless all heads were traced and blocks reused."""
    return curves.distribution(reuses(trace).idle_ns * MILLISECOND) if trace.all_heads else None


def distance(trace: KvTrace) -> curves.Distribution | None:
    """Distribution of reuse distances in blocks; None where not all layers were traced."""
    return curves.distribution(reuses(trace).distance_blocks) if trace.all_layers else None


def swap_in_ms(run: ReportedRun) -> float:
    """Device time to copy one block, all its layers, back from the host; NaN if none was."""
    rows = run.transfers(run.repeats[0])
    rows = rows[(rows["direction"] == copies.IN) & (rows["kind"] == copies.KV)]
    blocks, seconds = float(rows["blocks"].sum()), float(rows["copy_s"].sum())
    return 1e3 * seconds / blocks if blocks and seconds else math.nan


def draw(study: StudyData, axes: Sequence[Axes]) -> charts.Drawing | None:
    """Idle times at the left, reuse distances at the right; a line an experiment."""
    tables_by_axis = {IDLE: _table(study, idle), DISTANCE: _table(study, distance)}
    swaps = _swaps(study)
    more = {IDLE: (SWAPPED_IN,)} if not swaps.empty else {}
    plots = [
        curves.Lines(frame, title, SHARE, more=more.get(title, ()))
        for title, frame in tables_by_axis.items()
        if not frame.empty
    ]
    data = {"swaps": swaps} if any(plot.more for plot in plots) else {}
    return curves.lines_drawing(plots, data) if plots else None


def _table(
    study: StudyData, distribution_of: Callable[[KvTrace], curves.Distribution | None]
) -> pd.DataFrame:
    """The points of all experiments' distributions, each line from 0 % on."""
    frames = [
        distribution.frame().assign(line=run.label)
        for run, trace in shown(study)
        if (distribution := distribution_of(trace)) is not None
    ]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def _swaps(study: StudyData) -> pd.DataFrame:
    rows = [(run.label, swap_in_ms(run)) for run, _ in shown(study)]
    return pd.DataFrame(rows, columns=["line", "x"]).dropna()


FIGURE = charts.Figure(
    "Idle time and reuse distance of blocks",
    "A block of one layer is idle from the end of its last access in one forward pass to its first "
    "access in the next pass that uses it; during that time it could be swapped out. Its reuse "
    "distance is the number of other blocks, counted layer by layer, accessed in between. First "
    f"repeat of the first {MOST_LINES} experiments that trace every pass. Dotted: the time to copy "
    "one block, all its layers, back from the host, where the experiment swaps.",
    draw,
    order=180,
)

"""How long blocks lie untouched between bursts of accesses, and how far apart reuses are."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pandas as pd

from kvscope.analyse.access import Trace
from kvscope.analyse.events import read_events
from kvscope.analyse.reuse import Reuses, reuses_of
from kvscope.report.data import Run, StudyData
from kvscope.report.figures.accesses import traced
from kvscope.report.figures.figure import (
    NUMBER,
    PICKED,
    Drawing,
    Figure,
    Spec,
    View,
    colours,
    grid,
    number,
    plot_width,
    text,
)
from kvscope.report.figures.scales import is_wide, log_ticks

Floats = npt.NDArray[np.float64]

MOST_LINES = 8
POINTS = 400  # of a line
MILLISECOND = 1e-6
IDLE, DISTANCE = "time a block lies untouched (ms)", "other blocks used in between (layer by layer)"
SHARE = "share of reuses at or below (%)"
SHORTEST = 1e-6  # ms: a logarithmic axis has no 0
SWAPPED_IN = {
    "data": {"name": "swaps"},
    "mark": {"type": "rule", "strokeDash": [2, 3], "strokeWidth": 1.5},
    "encoding": {
        "tooltip": [text("experiment"), number("value", title="one block copied back (ms)")]
    },
}
LABEL_PX = 50


@dataclass(frozen=True)
class Distribution:
    """A cumulative distribution: `percent` of the values are at or below `value`."""

    value: Floats
    percent: Floats


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
    rows = rows[(rows["event"] == "resume") & (rows["policy"] == "swap")]
    blocks, seconds = float(rows["blocks"].sum()), float(rows["swap_in_s"].sum())
    return 1e3 * seconds / blocks if blocks and seconds else math.nan


def draw(study: StudyData) -> Drawing | None:
    """Idle times at the left, reuse distances at the right; a line an experiment."""
    found = {IDLE: _table(study, idle), DISTANCE: _table(study, distance)}
    parts = {title: frame for title, frame in found.items() if not frame.empty}
    if not parts:
        return None
    names = list(dict.fromkeys(name for frame in parts.values() for name in frame["experiment"]))
    data = {f"cell{n}": frame for n, frame in enumerate(parts.values())}
    swaps = _swaps(study)
    width = plot_width(len(parts), LABEL_PX)
    cells = [
        {"data": {"name": f"cell{n}"}, "width": width, "height": 210, **_lines(title, frame, names)}
        for n, (title, frame) in enumerate(parts.items())
    ]
    if IDLE in parts and not swaps.empty:
        data["swaps"] = swaps
        cells[0]["layer"].append(SWAPPED_IN)
    return Drawing((View(grid(cells, len(cells), "experiment"), data),), label_px=LABEL_PX)


def _table(study: StudyData, of: Callable[[Trace], Distribution | None]) -> pd.DataFrame:
    """The points of all experiments' distributions, each line from 0 % on."""
    frames = [
        pd.DataFrame(
            {
                "value": np.maximum([one.value[0], *one.value], SHORTEST).round(6),
                "percent": np.array([0.0, *one.percent]).round(3),
            }
        ).assign(experiment=run.label)
        for run, trace in shown(study)
        if (one := of(trace)) is not None
    ]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def _swaps(study: StudyData) -> pd.DataFrame:
    rows = [(run.label, swap_in_ms(run)) for run, _ in shown(study)]
    return pd.DataFrame(rows, columns=["experiment", "value"]).dropna()


def _lines(title: str, frame: pd.DataFrame, names: list[str]) -> Spec:
    low, high = frame["value"].min(), frame["value"].max()
    wide = is_wide([low, high], 10)
    x = number(
        "value",
        title=title,
        scale={"type": "log", "nice": False} if wide else {"zero": True},
        axis={"values": log_ticks(low, high), "format": NUMBER} if wide else {"tickCount": 5},
    )
    legend = {"columns": 1} if len(names) > 1 else None
    line = {
        "mark": {"type": "line", "interpolate": "step-after"},
        "encoding": {
            "y": number("percent", title=SHARE, scale={"domain": [0, 100]}),
            "tooltip": [
                text("experiment"),
                number("value", title=title, format=".4~g"),
                number("percent", title="at or below (%)", format=".1f"),
            ],
        },
    }
    colour = text("experiment", scale=colours(names), legend=legend)
    return {"encoding": {"x": x, "color": colour, "opacity": PICKED}, "layer": [line]}


FIGURE = Figure(
    "access_gaps",
    "How long blocks lie untouched",
    "A block of one layer lies untouched from the end of the last access of one forward pass to "
    "the first access of the next pass that uses it: time in which it could be elsewhere. Its "
    "reuse distance is the number of other blocks, counted layer by layer, that were accessed in "
    f"between. First repeat of the first {MOST_LINES} experiments that trace every pass; dotted: "
    "the time to copy one block, all its layers, back from the host, where the experiment swaps.",
    draw,
)

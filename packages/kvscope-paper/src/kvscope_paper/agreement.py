"""The rule by which a value of ours agrees with a published one, by the kind of value."""

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

from kvscope_paper.pass_values import READS
from kvscope_paper.published.figures import Point, points
from kvscope_paper.published.fitted import fitted_figures
from kvscope_paper.published.repeats import repeat_limit

COUNTS = ("passes", "preemptions", "tokens", READS)  # units; they follow from the scheduler alone
ROUNDING = 1e-9  # of decimal numbers


@dataclass(frozen=True)
class Kind:
    """A kind of published value: its name, its rule of agreement, and what agreement shows."""

    name: str
    rule: str
    shows: str


_CLOSE = "as close as repeats"
COUNT = Kind("counts", "equal", "the scheduler and its blocks; of Figure 11 in caches as below")
SHARE = Kind(
    "shares of the KV cache in use",
    "equal as rounded",
    "the scheduler and its blocks, in caches whose sizes were determined from these series",
)
PREDICTED = Kind("predicted times", _CLOSE, "the cost model, on data that it is not fitted on")
CORRECTED = Kind(
    "predicted times, stalls cut from the published ones", _CLOSE, "the cost model and the cut"
)
FITTED = Kind("times of fitted experiments", _CLOSE, "the fit: its constants come from these times")
STALLED = Kind("times with a stall of the host", _CLOSE, "nothing: the model has no such stalls")
MEASURED = Kind("measured times", _CLOSE, "the speed of this machine relative to the paper's")
# In decreasing order of evidence.
KINDS = (COUNT, SHARE, PREDICTED, CORRECTED, FITTED, STALLED, MEASURED)


def kind_of(point: Point, unit: str, modeled: bool) -> Kind:
    """The kind of a published value in this unit, compared with a modeled or a measured one."""
    if unit in COUNTS or point.value == 0:  # an overhead of 0: nothing was evicted
        return COUNT
    if point.table.resolution is not None:
        return SHARE
    if point.stalled:
        return STALLED
    if not modeled:
        return MEASURED
    if point.experiment in _fitted_experiments():
        return FITTED
    return CORRECTED if point.table.corrected else PREDICTED


@cache
def _fitted_experiments() -> frozenset[tuple[Any, ...]]:
    """The experiments of the fitted figures, some of which another figure shows again."""
    return frozenset(point.experiment for point in points(tuple(fitted_figures())))


def agrees(point: Point, unit: str, ours: float) -> bool:
    """True if ours agrees: a count if it is equal, a share if it is equal as published.

    A time, or a throughput, agrees if it is as close as two measurements of the paper's artifact
    are to each other (`repeat_limit`).
    """
    if unit in COUNTS or ours == point.value:
        return ours == point.value
    if point.table.resolution is not None:
        return abs(ours - point.value) <= point.table.resolution / 2 + ROUNDING
    if ours <= 0 or point.value <= 0:
        return False
    return abs(math.log(ours / point.value)) <= repeat_limit()


def rule(point: Point, unit: str) -> str:
    """The rule of `agrees` for such a value, in words."""
    if unit in COUNTS or point.value == 0:
        return "equal"
    if point.table.resolution is not None:
        return f"equal to {point.table.resolution:g}"
    return f"within a factor of {math.exp(repeat_limit()):.3f}"

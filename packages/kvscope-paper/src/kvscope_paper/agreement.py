"""The rule by which a value of ours agrees with a published one, by the kind of value."""

import math
from dataclasses import dataclass

from kvscope.report.words import percent
from kvscope_paper.pass_values import READS
from kvscope_paper.published.figures import Point
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
COUNT = Kind("counts", "equal", "the scheduler and its blocks; no number is fitted to them")
SHARE = Kind(
    "shares of the KV cache in use", "equal as rounded", "the same; no number is fitted to them"
)
PREDICTED = Kind("predicted times", _CLOSE, "the cost model, where it was not fitted")
FITTED = Kind("fitted times", _CLOSE, "the fit alone: the model's numbers are made from these")
STALLED = Kind("times with a stall of the host", _CLOSE, "nothing: the model has no such stalls")
MEASURED = Kind("measured times", _CLOSE, "how fast this machine is beside the paper's")
# In the order in which they say most.
KINDS = (COUNT, SHARE, PREDICTED, FITTED, STALLED, MEASURED)


def kind_of(point: Point, unit: str, modeled: bool) -> Kind:
    """The kind of a published value in this unit, compared with a modeled or a measured one."""
    if unit in COUNTS:
        return COUNT
    if point.table.resolution is not None:
        return SHARE
    if point.stalled:
        return STALLED
    if not modeled:
        return MEASURED
    return FITTED if point.table.figure in fitted_figures() else PREDICTED


def agrees(point: Point, unit: str, ours: float) -> bool:
    """Whether ours agrees: a count if it is equal, a share if it is equal as published.

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
    if unit in COUNTS:
        return "equal"
    if point.table.resolution is not None:
        return f"equal to {point.table.resolution:g}"
    return f"within {percent(repeat_limit())}"

"""Point estimates and confidence intervals over repeats."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvscope.interval import half_width


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % confidence interval; NaN where it is not defined."""

    value: float
    low: float
    high: float
    count: int


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and 95 % Student-t interval (`interval.half_width`) of one value a repeat.

    NaN values are left out. The interval is NaN below two values.
    """
    sample = [v for v in values if not math.isnan(v)]
    if not sample:
        return Estimate(math.nan, math.nan, math.nan, 0)
    mean, half = float(np.mean(sample)), half_width(sample)
    return Estimate(mean, mean - half, mean + half, len(sample))


def widen(found: Estimate, uncertainty: float) -> Estimate:
    """Add a method's uncertainty to an interval: the new half width is √(half² + uncertainty²)."""
    half = math.hypot(found.high - found.value, uncertainty)
    return Estimate(found.value, found.value - half, found.value + half, found.count)


def coefficient_of_variation(values: Sequence[float]) -> float:
    """Standard deviation (n-1) over mean; 0 below two values."""
    sample = np.asarray(values, dtype=float)
    if len(sample) < 2:
        return 0.0
    return float(sample.std(ddof=1) / sample.mean())

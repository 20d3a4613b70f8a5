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
    """Mean and Student-t interval of one value per repeat; NaN values are left out.

    The interval is Student's (`interval.half_width`); it needs two repeats.
    """
    sample = [v for v in values if not math.isnan(v)]
    if not sample:
        return Estimate(math.nan, math.nan, math.nan, 0)
    mean, half = float(np.mean(sample)), half_width(sample)
    return Estimate(mean, mean - half, mean + half, len(sample))


def widen(found: Estimate, uncertainty: float) -> Estimate:
    """The estimate with the uncertainty of its method in its interval, too: √(half² + its²).

    The interval is never narrower than the uncertainty on either side.
    """
    half = math.hypot(found.high - found.value, uncertainty)
    return Estimate(found.value, found.value - half, found.value + half, found.count)


def coefficient_of_variation(values: Sequence[float]) -> float:
    """Standard deviation (n-1) over mean; 0 below two values."""
    sample = np.asarray(values, dtype=float)
    if len(sample) < 2:
        return 0.0
    return float(sample.std(ddof=1) / sample.mean())

"""Point estimates and confidence intervals over repeats."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % confidence interval; NaN where it is not defined."""

    value: float
    low: float
    high: float
    count: int


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and Student-t interval of one value per repeat; NaN values are left out.

    The interval is mean ± t(0.975, n-1) · s / √n, s with n-1 degrees of freedom; it needs two
    repeats. It assumes repeats to be independent and about normally distributed.
    """
    sample = np.array([v for v in values if not math.isnan(v)], dtype=float)
    if not len(sample):
        return Estimate(math.nan, math.nan, math.nan, 0)
    mean = float(sample.mean())
    if len(sample) < 2:
        return Estimate(mean, math.nan, math.nan, 1)
    t = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(sample) - 1))
    half = t * float(sample.std(ddof=1)) / math.sqrt(len(sample))
    return Estimate(mean, mean - half, mean + half, len(sample))


def widened(found: Estimate, uncertainty: float) -> Estimate:
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

"""The 95 % confidence interval of a mean: what ends the repeats of a run, and what metrics show."""

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

CONFIDENCE = 0.95


def half_width(values: Sequence[float]) -> float:
    """Half the width of Student's interval of the mean: t(0.975, n-1) · s / √n; NaN below two.

    s is the standard deviation with n-1 degrees of freedom. It assumes the values to be independent
    and about normally distributed.
    """
    count = len(values)
    if count < 2:
        return math.nan
    deviation = float(np.std(np.asarray(values, dtype=float), ddof=1))
    return float(stdtrit(count - 1, 0.5 + CONFIDENCE / 2)) * deviation / math.sqrt(count)


def half_width_share(values: Sequence[float]) -> float:
    """Half the width of the interval as a share of the mean; NaN where it is not defined."""
    mean = float(np.mean(values)) if len(values) else 0.0
    return half_width(values) / mean if mean > 0 else math.nan

"""The 95 % confidence interval of a mean: what ends the repeats of a run, and what metrics show."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

CONFIDENCE = 0.95


def half_width(values: Sequence[float]) -> float:
    """Half the width of Student's interval of the mean: t(0.975, n-1) · s / √n.

    s is the standard deviation with n-1 degrees of freedom. It assumes the values to be independent
    and about normally distributed. NaN below two values, and if one is not finite.
    """
    count = len(values)
    if count < 2 or not all(map(math.isfinite, values)):
        return math.nan
    from scipy.special import stdtrit  # half a second that planning does without

    t = float(stdtrit(count - 1, 0.5 + CONFIDENCE / 2))
    return t * stdev(values) / math.sqrt(count)


def half_width_share(values: Sequence[float]) -> float:
    """Half the width of the interval as a share of the mean; NaN where it is not defined."""
    half = half_width(values)
    return half / fmean(values) if half >= 0 and fmean(values) > 0 else math.nan

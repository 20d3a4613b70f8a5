"""95 % intervals of a mean over repeats."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

CONFIDENCE = 0.95


def student_t(freedom: float) -> float:
    """The quantile of Student's t between which and its negative 95 % lie."""
    from scipy.special import stdtrit  # takes half a second to import; planning does not need it

    return float(stdtrit(freedom, 0.5 + CONFIDENCE / 2))


def half_width(values: Sequence[float]) -> float:
    """Half the width of Student's confidence interval of the mean: t(0.975, n-1) · s / √n.

    s is the standard deviation with n-1 degrees of freedom; the values are assumed to be
    independent and about normally distributed. NaN for fewer than two values, or if a value is not
    finite.
    """
    count = len(values)
    if count < 2 or not all(map(math.isfinite, values)):
        return math.nan
    return student_t(count - 1) * stdev(values) / math.sqrt(count)


def half_width_share(values: Sequence[float]) -> float:
    """`half_width` divided by the mean; NaN if undefined or if the mean is not positive."""
    half = half_width(values)
    return half / fmean(values) if half >= 0 and fmean(values) > 0 else math.nan

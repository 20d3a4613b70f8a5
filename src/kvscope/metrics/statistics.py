"""Point estimates and confidence intervals over repeats, and of ratios and differences of means."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvscope.base.interval import half_width, student_t
from kvscope.base.rounds import UNKNOWN as UNKNOWN_RATIO
from kvscope.base.rounds import Interval


@dataclass(frozen=True)
class Estimate:
    """A mean of `count` repeats with its 95 % confidence interval; NaN where it is not defined."""

    value: float
    low: float
    high: float
    count: int = 0

    @property
    def has_interval(self) -> bool:
        """Whether there were repeats enough for an interval."""
        return not math.isnan(self.low) and not math.isnan(self.high)

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of the interval; the value twice without one."""
        return (self.low, self.high) if self.has_interval else (self.value, self.value)

    @property
    def half(self) -> float:
        """Half the interval's width; NaN without one."""
        return (self.high - self.low) / 2

    @property
    def variance(self) -> float:
        """The variance of the mean, from the width of the interval; NaN below two repeats."""
        if self.count < 2:
            return math.nan
        return (self.half / student_t(self.count - 1)) ** 2


UNKNOWN = Estimate(math.nan, math.nan, math.nan, 0)


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


def difference(one: Estimate, other: Estimate) -> Estimate:
    """one − other, of independent means, with Welch's interval.

    It is NaN if either side has fewer than two repeats.
    """
    value, count = one.value - other.value, min(one.count, other.count)
    variance = one.variance + other.variance
    if math.isnan(variance):
        return Estimate(value, math.nan, math.nan, count)
    half = student_t(_welch(one, other)) * math.sqrt(variance)
    return Estimate(value, value - half, value + half, count)


def independent_ratio(one: Estimate, base: Estimate) -> Interval:
    """one / base, of independent means, with Fieller's interval and Welch's degrees of freedom.

    It has no upper end if the base's own interval reaches 0. UNKNOWN if either side has fewer than
    two repeats, or the base is not above 0.
    """
    variances = one.variance, base.variance
    if not base.value > 0 or math.isnan(sum(variances)):
        return UNKNOWN_RATIO
    t = student_t(_welch(one, base, one.value / base.value))
    squares = [t * t * variance for variance in variances]
    found = _fieller((one.value, base.value), (squares[0], squares[1]), 0.0)
    return found if base.low > 0 else Interval(found.value, found.low, math.inf)


def paired_ratio(
    values: Sequence[float], base: Sequence[float], errors: tuple[float, float] = (0.0, 0.0)
) -> Interval:
    """mean of `values` / mean of `base`, of pairs, with Fieller's interval.

    `errors` are the half widths that a method adds to each mean. UNKNOWN below two pairs, or if
    the mean of the base is not above 0.
    """
    count = len(values)
    if count < 2 or not np.mean(base) > 0:
        return UNKNOWN_RATIO
    squared_t = student_t(count - 1) ** 2 / count
    (own, both), (_, other) = (squared_t * np.cov(values, base)).tolist()
    squares = own + errors[0] ** 2, other + errors[1] ** 2
    return _fieller((float(np.mean(values)), float(np.mean(base))), squares, both)


def _fieller(means: tuple[float, float], squares: tuple[float, float], both: float) -> Interval:
    """The ratios r for which mean − r · base mean is within its interval around 0.

    `squares` are the squares of the half widths of the two means, `both` is their covariance on
    the same scale. The upper end is infinite where the base's interval has 0 in it. Source: E. C.
    Fieller (1954), "Some problems in interval estimation", J. R. Stat. Soc. B 16.
    """
    (mean, base), value = means, means[0] / means[1]
    a, b, c = base**2 - squares[1], mean * base - both, mean**2 - squares[0]
    root = math.sqrt(max(0.0, b * b - a * c))
    if a > 0:
        low, high = (b - root) / a, (b + root) / a
        return Interval(value, min(low, value), max(high, value))
    outside = a < 0 < root and (b + root) / a <= 0  # all below, or above the larger end
    return Interval(value, (b - root) / a if outside else -math.inf, math.inf)


def _welch(one: Estimate, other: Estimate, times: float = 1.0) -> float:
    """Degrees of freedom of one − times · other, by Welch and Satterthwaite."""
    squares = one.variance, times**2 * other.variance
    counts = one.count, other.count
    parts = sum(s**2 / (count - 1) for s, count in zip(squares, counts, strict=True))
    return sum(squares) ** 2 / parts if parts else math.inf


def coefficient_of_variation(values: Sequence[float]) -> float:
    """Standard deviation (n-1) over mean; 0 below two values or of equal ones, NaN of mean 0."""
    sample = np.asarray(values, dtype=float)
    deviation = float(sample.std(ddof=1)) if len(sample) > 1 else 0.0
    if deviation == 0:
        return 0.0
    return deviation / mean if (mean := float(sample.mean())) else math.nan

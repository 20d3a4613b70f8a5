"""Numbers with 95 % confidence intervals: means over repeats, differences and ratios of means.

`kvscope.base.rounds` has those of times that were measured in rounds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, geometric_mean, stdev

import numpy as np

from kvscope.base.arraytypes import Floats

CONFIDENCE = 0.95
PERCENTILES = (2.5, 97.5)  # between which 95 % lie


@dataclass(frozen=True)
class Interval:
    """A number with its 95 % confidence interval; NaN where it is not defined.

    Attributes
    ----------
    count
        of the repeats that a mean is of, or of the rounds that a comparison is of; 0 if not known
    how
        the method by which two experiments were compared; '' of other numbers
    """

    value: float
    low: float
    high: float
    count: int = 0
    how: str = ""

    @classmethod
    def around(cls, value: float, half: float, count: int = 0) -> "Interval":
        """The interval of so much on both sides."""
        return cls(value, value - half, value + half, count)

    @classmethod
    def exp(cls, log: float, half: float) -> "Interval":
        """The interval of a number whose logarithm has this half width."""
        return cls(math.exp(log), math.exp(log - half), math.exp(log + half))

    @property
    def has_interval(self) -> bool:
        """Whether there were repeats enough for an interval."""
        return not math.isnan(self.low) and not math.isnan(self.high)

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of the interval; the value itself twice if there is no interval."""
        return (self.low, self.high) if self.has_interval else (self.value, self.value)

    @property
    def half(self) -> float:
        """Half the interval's width; NaN without one."""
        return (self.high - self.low) / 2

    @property
    def half_width_share(self) -> float:
        """Half the width as a share of the value, on the scale of logarithms."""
        return math.sqrt(self.high / self.low) - 1 if self.low > 0 else math.nan

    @property
    def variance(self) -> float:
        """The variance of the mean, from the width of the interval; NaN below two repeats."""
        if self.count < 2:
            return math.nan
        return (self.half / student_t(self.count - 1)) ** 2

    def side_of(self, number: float) -> int:
        """1 if the interval is above the number, -1 if it is below, 0 if the number is in it."""
        return int(self.low > number) - int(self.high < number)


UNKNOWN = Interval(math.nan, math.nan, math.nan)


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


def estimate(values: Sequence[float]) -> Interval:
    """Mean and 95 % Student-t interval (`half_width`) of one value a repeat.

    NaN values are left out. The interval is NaN below two values.
    """
    sample = [v for v in values if not math.isnan(v)]
    if not sample:
        return UNKNOWN
    return Interval.around(float(np.mean(sample)), half_width(sample), len(sample))


def paired_logs(differences: Floats) -> Interval:
    """A ratio of pairs, from the differences of their logarithms: the paired t interval.

    It has HC3's error, √(n / (n−1)) times as wide: what the model of `kvscope.base.rounds` says of
    two experiments alone.
    """
    error = float(differences.std(ddof=1)) / math.sqrt(len(differences) - 1)
    return Interval.exp(float(differences.mean()), student_t(len(differences) - 1) * error)


def bootstrap_interval(value: float, samples: Sequence[float]) -> Interval:
    """The interval of 95 % of the fits to bootstrap samples, widened to contain the value itself.

    A bootstrap of a curved model is biased: its samples may all lie on one side of the value, which
    a percentile interval would then exclude.
    """
    low, high = np.percentile(samples, PERCENTILES).tolist()
    return Interval(value, min(low, value), max(high, value))


def widen(found: Interval, uncertainty: float) -> Interval:
    """Add a method's uncertainty to an interval: the new half width is √(half² + uncertainty²)."""
    half = math.hypot(found.high - found.value, uncertainty)
    return Interval.around(found.value, half, found.count)


def widen_ratio(found: Interval, shares: Sequence[float]) -> Interval:
    """Add uncertainties, as shares of the ratio's two numbers, to an interval above 0, as
    `widen`."""
    half = math.hypot(math.log(found.high / found.low) / 2, *shares)
    low, high = found.value / math.exp(half), found.value * math.exp(half)
    return replace(found, low=low, high=high)


def difference(one: Interval, other: Interval) -> Interval:
    """one − other, of independent means, with Welch's interval.

    It is NaN if either side has fewer than two repeats.
    """
    value, count = one.value - other.value, min(one.count, other.count)
    variance = one.variance + other.variance
    if math.isnan(variance):
        return Interval(value, math.nan, math.nan, count)
    return Interval.around(value, student_t(_welch(one, other)) * math.sqrt(variance), count)


def independent_ratio(one: Interval, base: Interval) -> Interval:
    """one / base, of independent means, with Fieller's interval and Welch's degrees of freedom.

    It has no upper end if the base's own interval reaches 0. UNKNOWN if either side has fewer than
    two repeats, or the base is not above 0.
    """
    variances = one.variance, base.variance
    if not base.value > 0 or math.isnan(sum(variances)):
        return UNKNOWN
    t = student_t(_welch(one, base, one.value / base.value))
    squares = [t * t * variance for variance in variances]
    ratio = _fieller((one.value, base.value), (squares[0], squares[1]), 0.0)
    return ratio if base.low > 0 else replace(ratio, high=math.inf)


def paired_ratio(
    values: Sequence[float], base: Sequence[float], errors: tuple[float, float] = (0.0, 0.0)
) -> Interval:
    """mean of `values` / mean of `base`, of pairs, with Fieller's interval.

    `errors` are the half widths that a method adds to each mean. UNKNOWN below two pairs, or if
    the mean of the base is not above 0.
    """
    count = len(values)
    if count < 2 or not np.mean(base) > 0:
        return UNKNOWN
    squared_t = student_t(count - 1) ** 2 / count
    (variance, covariance), (_, other) = (squared_t * np.cov(values, base)).tolist()
    squares = variance + errors[0] ** 2, other + errors[1] ** 2
    return _fieller((float(np.mean(values)), float(np.mean(base))), squares, covariance)


def range_of_ratio(one: Interval, base: Interval) -> Interval:
    """one / base with the range that the ends of the two intervals allow; `base` is above 0.

    Two numbers without intervals are exact. UNKNOWN if one of them alone has one.
    """
    value = one.value / base.value
    if not (one.has_interval or base.has_interval):
        return Interval(value, value, value)
    if not (one.has_interval and base.has_interval):
        return UNKNOWN
    high = one.high / base.low if base.low > 0 else math.inf
    return Interval(value, max(0.0, one.low) / base.high, high)


def range_of_difference(one: Interval, other: Interval) -> Interval:
    """one − other with the range that the ends of the two intervals allow."""
    (low, high), (other_low, other_high) = one.ends, other.ends
    count = min(one.count, other.count)
    return Interval(one.value - other.value, low - other_high, high - other_low, count)


def mean_ratio(ratios: Sequence[Interval]) -> Interval:
    """The geometric mean of ratios above 0, and of the ends of their intervals.

    The result is at least as wide as the 95 % interval of the mean, also if the ratios are
    correlated. ValueError if one of several ratios is 0, which would make the mean 0.
    """
    if len(ratios) > 1 and not all(0 < ratio.value < math.inf for ratio in ratios):
        raise ValueError("only ratios above 0 have a geometric mean")
    columns = zip(*((ratio.value, ratio.low, ratio.high) for ratio in ratios), strict=True)
    value, low, high = map(_geometric_mean, columns)
    return Interval(value, low, high, min(ratio.count for ratio in ratios), ratios[0].how)


def mean_difference(differences: Sequence[Interval]) -> Interval:
    """The mean of differences, and of their intervals' ends; NaN where an end is unknown."""
    columns = zip(*((d.value, d.low, d.high) for d in differences), strict=True)
    value, low, high = map(fmean, columns)
    return Interval(value, low, high)


def coefficient_of_variation(values: Sequence[float]) -> float:
    """Standard deviation (n-1) over mean; 0 below two values or without spread, NaN for mean 0."""
    sample = np.asarray(values, dtype=float)
    deviation = float(sample.std(ddof=1)) if len(sample) > 1 else 0.0
    if deviation == 0:
        return 0.0
    return deviation / mean if (mean := float(sample.mean())) else math.nan


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


def _welch(one: Interval, other: Interval, times: float = 1.0) -> float:
    """Degrees of freedom of one − times · other, by Welch and Satterthwaite."""
    squares = one.variance, times**2 * other.variance
    counts = one.count, other.count
    parts = sum(s**2 / (count - 1) for s, count in zip(squares, counts, strict=True))
    return sum(squares) ** 2 / parts if parts else math.inf


def _geometric_mean(numbers: Sequence[float]) -> float:
    """Geometric mean; 0 if a number is not above 0, infinite if a number is infinite."""
    if min(numbers) <= 0:
        return 0.0
    return geometric_mean(numbers) if math.isfinite(max(numbers)) else math.inf

"""Times that were measured in rounds, and their ratios, with 95 % confidence intervals.

In a round every experiment of a group is served once, in random order. The logarithm of a time is

    log time = experiment + round + slope · waiting + rest,    waiting = −log(1 − w),

where w is the share of its time in which the engine was ready without a CPU. What drifts slowly is
the round's; what other processes take is waiting's. An interval does not assume that the rest has
the same variance everywhere: its covariance is HC3 of MacKinnon and White (1985), "Some
heteroskedasticity-consistent covariance matrix estimators with improved finite sample properties",
Journal of Econometrics 29. docs/METRICS.md has the formulas.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kvscope.interval import CONFIDENCE

Array = NDArray[np.float64]

# Waiting above this in any repeat is a covariate; below it is noise of the counter and of the
# system's own services.
WAITING_SEEN = 0.05
# Engines are not equally sensitive to other load: the slopes of two differ by about this much, of
# which one common slope knows nothing.
SLOPES_DIFFER_BY = 0.06
# Leverage at most: a repeat that alone determines a coefficient has no rest to learn from.
MOST_LEVERAGE = 0.99


def waiting(ran_s: float, waited_s: float) -> float:
    """−log(1 − w), with w = waited / (ran + waited) summed over an engine's threads.

    `ran_s` and `waited_s` are what /proc/PID/task/*/schedstat counted meanwhile.
    """
    return math.log1p(waited_s / ran_s) if ran_s > 0 else 0.0


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % confidence interval, NaN where it is not defined."""

    value: float
    low: float
    high: float

    @property
    def half_width_share(self) -> float:
        """Half the width as a share of the value, on the scale of logarithms."""
        return math.sqrt(self.high / self.low) - 1 if self.low > 0 else math.nan


UNKNOWN = Interval(math.nan, math.nan, math.nan)


@dataclass(frozen=True, eq=False)
class Rounds:
    """Times of experiments, one a repeat: arrays of the same length.

    Attributes
    ----------
    experiment, round
        whose repeat it is, and in which round it was measured
    time
        above 0, in any unit
    waiting
        of the repeat (`waiting`), without a unit
    """

    experiment: Sequence[str]
    round: Sequence[int]
    time: Sequence[float]
    waiting: Sequence[float]

    def ratio(self, other: str, base: str) -> Interval:
        """time of `other` / time of `base`, what the model above says of it.

        Where nothing waited and both were measured in the same rounds, it is the paired t interval
        of the logarithms. UNKNOWN below two rounds, or where no rounds connect the two.
        """
        if other == base:
            return Interval(1.0, 1.0, 1.0)
        differences = [] if self.waited else self._differences(other, base)
        paired = len(differences) > 1
        return _exp(*(_paired(differences) if paired else self._model.contrast(other, base)))

    def value(self, experiment: str) -> Interval:
        """The time of an experiment where nothing waits: geometric mean and t interval over rounds.

        Where something waited it is extrapolated by the slope, whose own error is added.
        """
        rows = [n for n, name in enumerate(self.experiment) if name == experiment]
        logs, waited = self._logs[rows], self._waiting[rows]
        if len(rows) < 2:
            return _exp(float(logs[0]), math.nan) if len(rows) else UNKNOWN
        slope, slope_variance = self._model.slope if self.waited else (0.0, 0.0)
        left = logs - slope * waited
        mean_waiting = float(waited.mean())
        variance = float(left.var(ddof=1)) / len(rows) + slope_variance * mean_waiting**2
        half = _t(len(rows) - 1) * math.sqrt(variance)
        return _exp(float(left.mean()), half + SLOPES_DIFFER_BY * mean_waiting * self.waited)

    @property
    def waited(self) -> bool:
        """Whether waiting was seen, so that times are adjusted for it."""
        return bool((self._waiting > WAITING_SEEN).any())

    @cached_property
    def _logs(self) -> Array:
        times: Array = np.asarray(self.time, dtype=float)
        return np.log(times)

    @cached_property
    def _waiting(self) -> Array:
        return np.asarray(self.waiting, dtype=float)

    @cached_property
    def _model(self) -> "_Model":
        slopes = self._waiting if self.waited else None
        return _Model.fit(self.experiment, self.round, self._logs, slopes)

    def _differences(self, other: str, base: str) -> list[float]:
        """log other − log base of each round that has both."""
        logs: dict[str, dict[int, float]] = {other: {}, base: {}}
        for name, number, log in zip(self.experiment, self.round, self._logs, strict=True):
            if name in logs:
                logs[name][number] = float(log)
        both = logs[other].keys() & logs[base].keys()
        return [logs[other][number] - logs[base][number] for number in sorted(both)]


def _paired(differences: Sequence[float]) -> tuple[float, float]:
    """Mean and half width of the paired t interval, with HC3's error: √(n / (n−1)) times as wide.

    It is what the model says of two experiments alone.
    """
    sample = np.asarray(differences)
    error = float(sample.std(ddof=1)) / math.sqrt(len(sample) - 1)
    return float(sample.mean()), _t(len(sample) - 1) * error


def _exp(log: float, half: float) -> Interval:
    return Interval(math.exp(log), math.exp(log - half), math.exp(log + half))


def _t(freedom: int) -> float:
    from scipy.special import stdtrit  # takes half a second to import

    return float(stdtrit(freedom, 0.5 + CONFIDENCE / 2))


@dataclass(frozen=True, eq=False)
class _Model:
    """A fit: coefficients, their covariance, and which column is whose effect."""

    effects: dict[str, int]
    groups: dict[str, int]
    coefficients: Array
    covariance: Array
    freedom: int
    mean_waiting: float  # 0 without a slope

    @classmethod
    def fit(
        cls, experiment: Sequence[str], number: Sequence[int], logs: Array, slopes: Array | None
    ) -> "_Model":
        """Least squares of logs on experiments, rounds and, if given, waiting."""
        names, numbers = list(dict.fromkeys(experiment)), list(dict.fromkeys(number))
        effects = {name: column for column, name in enumerate(names)}
        rounds = {one: len(names) + column for column, one in enumerate(numbers)}
        design = np.zeros((len(logs), len(names) + len(numbers) + (slopes is not None)))
        for row, (name, one) in enumerate(zip(experiment, number, strict=True)):
            design[row, effects[name]] = design[row, rounds[one]] = 1.0
        if slopes is not None:
            design[:, -1] = slopes
        inverse = np.linalg.pinv(design.T @ design)
        coefficients = inverse @ design.T @ logs
        rest = logs - design @ coefficients
        leverage = np.einsum("ij,jk,ik->i", design, inverse, design).clip(0, MOST_LEVERAGE)
        weighted = design * (rest / (1 - leverage))[:, None]
        covariance = inverse @ (weighted.T @ weighted) @ inverse
        freedom = len(logs) - int(np.linalg.matrix_rank(design))
        mean = 0.0 if slopes is None else float(slopes.mean())
        groups = _connected(experiment, number)
        return cls(effects, groups, coefficients, covariance, freedom, mean)

    def contrast(self, other: str, base: str) -> tuple[float, float]:
        """log of a ratio and half the width of its interval; NaN if the rounds do not tell it."""
        unknown = math.nan, math.nan
        if other not in self.effects or base not in self.effects or self.freedom < 1:
            return unknown
        if self.groups[other] != self.groups[base]:
            return unknown
        weights = np.zeros(len(self.coefficients))
        weights[self.effects[other]], weights[self.effects[base]] = 1.0, -1.0
        error = math.sqrt(max(0.0, float(weights @ self.covariance @ weights)))
        half = _t(self.freedom) * error + SLOPES_DIFFER_BY * self.mean_waiting
        return float(weights @ self.coefficients), half

    @property
    def slope(self) -> tuple[float, float]:
        """The coefficient of waiting and its variance."""
        return float(self.coefficients[-1]), float(self.covariance[-1, -1])


def _connected(experiment: Sequence[str], number: Sequence[int]) -> dict[str, int]:
    """A number for each experiment, equal for those that rounds connect, if through others."""
    members: dict[int, set[str]] = {}
    for name, one in zip(experiment, number, strict=True):
        members.setdefault(one, set()).add(name)
    found = {name: place for place, name in enumerate(dict.fromkeys(experiment))}
    for together in members.values():
        joined, least = {found[name] for name in together}, min(found[name] for name in together)
        found = {name: least if place in joined else place for name, place in found.items()}
    return found

"""Times that were measured in rounds, and their ratios, with 95 % confidence intervals.

In a round every experiment of a group is served once, in random order. The logarithm of a time is

    log time = experiment + round + slope · waiting + rest,    waiting = −log(1 − w),

where w is the share of its time in which the engine was ready without a CPU. Slow drift belongs to
the round, the load of other processes to waiting. An interval does not assume that the rest has
the same variance everywhere: its covariance is HC3 of MacKinnon and White (1985), "Some
heteroskedasticity-consistent covariance matrix estimators with improved finite sample properties",
Journal of Econometrics 29. docs/METRICS.md has the formulas.
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

import numpy as np

from kvscope.base.arraytypes import Floats
from kvscope.base.statistics import UNKNOWN, Interval, paired_logs, student_t

# Waiting above this in any repeat is a covariate; below it is noise of the counter and of the
# system's own services.
WAITING_SEEN = 0.05
# Engines are not equally sensitive to other load: the slopes of two differ by about this much, of
# which one common slope knows nothing. docs/METRICS.md has the coverage with it and without.
SLOPES_DIFFER_BY = 0.06
# Leverage at most: a repeat that alone determines a coefficient has no rest to learn from.
MOST_LEVERAGE = 0.99
# Rounding of the fit, by which it is judged what the rounds determine.
ROUNDING = 1e-6


def waiting(ran_s: float, waited_s: float) -> float:
    """−log(1 − w), with w = waited / (ran + waited) summed over an engine's threads.

    `ran_s` and `waited_s` are the repeat's in run.json, from /proc/PID/task/*/schedstat.
    """
    return math.log1p(waited_s / ran_s) if ran_s > 0 else 0.0


@dataclass(frozen=True, eq=False)
class Rounds:
    """Times of experiments, one a repeat: arrays of the same length.

    Several repeats of one experiment in one round, a sitting, count as one: the mean of their
    logarithms and of their waiting.

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
    round: Sequence[Hashable]
    time: Sequence[float]
    waiting: Sequence[float]

    def ratio(self, other: str, base: str) -> Interval:
        """time of `other` / time of `base`, by the model above.

        Where nothing waited and both were measured in the same rounds, it is the paired t interval
        of the logarithms. UNKNOWN below two rounds, or where no rounds connect the two.
        """
        if other == base:
            return Interval(1.0, 1.0, 1.0)
        shared = self._shared(other, base)
        if not self.waited and len(shared) > 1:
            return paired_logs(self._of(other, shared).logs - self._of(base, shared).logs)
        if other not in self._cells or base not in self._cells:
            return UNKNOWN
        log, half = self._model.contrast(other, base)
        waits = [float(self._cells[name].waits.mean()) for name in (other, base)]
        return Interval.exp(log, half + self._widening(sum(waits) / 2))

    def value(self, experiment: str) -> Interval:
        """The time of an experiment where nothing waits: geometric mean and t interval over rounds.

        Where something waited it is extrapolated by the slope, whose own error is added; as
        measured, if the rounds do not determine a slope (`adjusts`).
        """
        cells = self._cells.get(experiment)
        if cells is None:
            return UNKNOWN
        logs = self._adjusted(cells)
        mean_waiting = float(cells.waits.mean())
        if len(logs) < 2:
            return Interval.exp(float(logs[0]), math.nan)
        variance = float(logs.var(ddof=1)) / len(logs) + self._slope[1] * mean_waiting**2
        half = student_t(len(logs) - 1) * math.sqrt(variance)
        return Interval.exp(float(logs.mean()), half + self._widening(mean_waiting))

    def difference(self, other: str, base: str) -> Interval:
        """time of `other` − time of `base`, in the times' unit: a paired t interval.

        Of times adjusted for waiting, as for `value`. UNKNOWN below two rounds that have both.
        """
        shared = self._shared(other, base)
        if len(shared) < 2:
            return UNKNOWN
        cells, base_cells = self._of(other, shared), self._of(base, shared)
        times, base_times = np.exp(self._adjusted(cells)), np.exp(self._adjusted(base_cells))
        apart = times - base_times
        # The change of the mean per change of the slope.
        by_slope = float((times * cells.waits - base_times * base_cells.waits).mean())
        variance = float(apart.var(ddof=1)) / (len(apart) - 1) + self._slope[1] * by_slope**2
        half = student_t(len(apart) - 1) * math.sqrt(variance)
        size = float(np.mean(times * cells.waits + base_times * base_cells.waits)) / 2
        half += self._widening(size)
        return Interval.around(float(apart.mean()), half)

    def count(self, other: str, base: str) -> int:
        """Rounds that measured both; the fewer of either's, if only a third connects them."""
        shared = len(self._shared(other, base))
        return shared or min(len(self._cells[name].logs) for name in (other, base))

    @property
    def waited(self) -> bool:
        """Whether waiting was seen, so that times are to be adjusted for it."""
        return any((cells.waits > WAITING_SEEN).any() for cells in self._cells.values())

    @cached_property
    def adjusts(self) -> bool:
        """Whether times are adjusted: waiting was seen, and the rounds determine its slope."""
        return self.waited and not math.isnan(self._model.slope[1])

    def _widening(self, mean_waiting: float) -> float:
        return SLOPES_DIFFER_BY * mean_waiting if self.adjusts else 0.0

    @property
    def _slope(self) -> tuple[float, float]:
        """The slope and its variance; 0 where times are not adjusted."""
        return self._model.slope if self.adjusts else (0.0, 0.0)

    def _adjusted(self, cells: "_Cells") -> Floats:
        logs: Floats = cells.logs - self._slope[0] * cells.waits
        return logs

    @cached_property
    def _cells(self) -> "dict[str, _Cells]":
        """Means over the repeats of each round, one entry a round, by experiment."""
        entries: dict[str, dict[Hashable, list[tuple[float, float]]]] = defaultdict(dict)
        logs = np.log(np.asarray(self.time, dtype=float)).tolist()
        rows = zip(self.experiment, self.round, logs, self.waiting, strict=True)
        for name, number, log, waits in rows:
            entries[name].setdefault(number, []).append((log, waits))
        return {
            name: _Cells([*by_round], np.array([_mean(rows_) for rows_ in by_round.values()]))
            for name, by_round in entries.items()
        }

    @cached_property
    def _model(self) -> "_Model":
        return _Model.fit(self._cells, self.waited)

    def _shared(self, other: str, base: str) -> list[Hashable]:
        """The rounds that have both."""
        if other not in self._cells or base not in self._cells:
            return []
        base_rounds = {*self._cells[base].rounds}
        return [number for number in self._cells[other].rounds if number in base_rounds]

    def _of(self, experiment: str, rounds: Sequence[Hashable]) -> "_Cells":
        """An experiment's cells in these rounds, in their order."""
        cells = self._cells[experiment]
        places = {number: place for place, number in enumerate(cells.rounds)}
        return _Cells(rounds, cells.means[[places[number] for number in rounds]])


@dataclass(frozen=True, eq=False)
class _Cells:
    """An experiment's rounds, with the mean logarithm and the mean waiting of each, as columns."""

    rounds: Sequence[Hashable]
    means: Floats

    @property
    def logs(self) -> Floats:
        return self.means[:, 0]

    @property
    def waits(self) -> Floats:
        return self.means[:, 1]


def _mean(repeats: Sequence[tuple[float, float]]) -> tuple[float, float]:
    logs, waits = zip(*repeats, strict=True)
    return fmean(logs), fmean(waits)


@dataclass(frozen=True, eq=False)
class _Model:
    """A fit: coefficients, their covariance, and which contrasts the rounds determine.

    `effects` are the columns of the experiments; the slope, if there is one, is the last column.
    """

    effects: dict[str, int]
    coefficients: Floats
    covariance: Floats
    determined: Floats
    freedom: int

    @classmethod
    def fit(cls, cells: dict[str, _Cells], with_slope: bool) -> "_Model":
        """Least squares of the logarithms on experiments, rounds and, if wanted, waiting."""
        effects = {name: column for column, name in enumerate(cells)}
        numbers = dict.fromkeys(number for part in cells.values() for number in part.rounds)
        rounds = {number: len(cells) + column for column, number in enumerate(numbers)}
        logs = np.concatenate([part.logs for part in cells.values()])
        design = np.zeros((len(logs), len(cells) + len(rounds) + with_slope))
        row = 0
        for name, part in cells.items():
            for number in part.rounds:
                design[row, effects[name]] = design[row, rounds[number]] = 1.0
                row += 1
        if with_slope:
            design[:, -1] = np.concatenate([part.waits for part in cells.values()])
        gram = design.T @ design
        inverse = np.linalg.pinv(gram, rcond=ROUNDING**2, hermitian=True)
        solving = design @ inverse
        coefficients = solving.T @ logs
        residuals = logs - design @ coefficients
        leverage = (solving * design).sum(axis=1).clip(0, MOST_LEVERAGE)
        weighted = solving * (residuals / (1 - leverage))[:, None]
        freedom = len(logs) - round(float(np.trace(solving.T @ design)))
        return cls(effects, coefficients, weighted.T @ weighted, inverse @ gram, freedom)

    def contrast(self, other: str, base: str) -> tuple[float, float]:
        """log of a ratio, and half the width of its interval; NaN if the rounds do not determine
        it."""
        weights = np.zeros(len(self.coefficients))
        weights[self.effects[other]], weights[self.effects[base]] = 1.0, -1.0
        log, variance = self._estimate(weights)
        return log, student_t(self.freedom) * math.sqrt(variance) if variance >= 0 else math.nan

    @cached_property
    def slope(self) -> tuple[float, float]:
        """The coefficient of waiting and its variance; NaN if the rounds do not determine it."""
        return self._estimate(np.eye(len(self.coefficients))[-1])

    def _estimate(self, weights: Floats) -> tuple[float, float]:
        """A contrast of the coefficients and its variance, NaN where it is not determined."""
        determined = np.abs(weights @ self.determined - weights).max() < ROUNDING
        if not determined or self.freedom < 1:
            return math.nan, math.nan
        return float(weights @ self.coefficients), float(weights @ self.covariance @ weights)

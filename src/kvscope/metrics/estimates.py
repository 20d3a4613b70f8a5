"""Values, ratios and differences of the metrics of experiments that are looked at together.

Experiments of one campaign are compared over its rounds (`kvscope.base.rounds`), others as
independent means, and a rehearsed one with rehearsed ones only. docs/METRICS.md has the formulas,
under 'Rounds'.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from sys import intern
from typing import Any

import pandas as pd

from kvscope.base.arraytypes import Floats
from kvscope.base.rounds import Rounds
from kvscope.base.statistics import (
    UNKNOWN,
    Interval,
    difference,
    independent_ratio,
    paired_ratio,
    range_of_difference,
    range_of_ratio,
    widen_ratio,
)
from kvscope.base.time_sources import MODELED, REHEARSED
from kvscope.metrics.measure import is_of_time, measures

# How a ratio was estimated, beside `modeled` and `rehearsed`: over rounds, adjusted for waiting or
# as measured, or of means that no rounds connect.
ADJUSTED, PAIRED, INDEPENDENT = "adjusted", "paired", "independent"


@dataclass(frozen=True, eq=False)
class ExperimentMetrics:
    """A complete experiment: its settings and its `metrics` table, indexed by metric.

    `repeats` is its `repeat_metrics` table; None of one that was not measured in rounds.
    """

    settings: Mapping[str, Any]
    metrics: pd.DataFrame
    repeats: pd.DataFrame | None = None

    def estimate(self, metric: str) -> Interval:
        """A metric's estimate; NaN where the table has none."""
        place = self._places.get(metric)
        if place is None:
            return UNKNOWN
        value, low, high, count = self._numbers[place].tolist()
        return Interval(value, low, high, int(count))

    @cached_property
    def modeled(self) -> bool:
        """Whether its times are of a cost model."""
        return bool(self.metrics["time_source"].iloc[0] == MODELED)

    @cached_property
    def rehearsed(self) -> bool:
        """Whether a CPU was in the place of its GPU."""
        return bool((self.metrics["time_source"] == REHEARSED).any())

    @cached_property
    def campaign(self) -> str | None:
        """The campaign that measured or rehearsed all its repeats; None without such a campaign."""
        campaigns = [] if self.repeats is None else self.repeats["campaign"].unique().tolist()
        if len(campaigns) != 1 or campaigns[0] is None:
            return None
        return f"{campaigns[0]} {REHEARSED}" if self.rehearsed else str(campaigns[0])

    @cached_property
    def _places(self) -> dict[str, int]:
        return {intern(name): place for place, name in enumerate(self.metrics.index)}

    @cached_property
    def _numbers(self) -> Floats:
        """Value, ends of the interval and number of repeats, a row a metric: little memory."""
        return self.metrics[["value", "ci_low", "ci_high", "repeats_valid"]].to_numpy(float)


class Estimates:
    """Estimates of each metric from several experiments, by the names that they are given."""

    def __init__(self, experiments: Mapping[str, ExperimentMetrics]) -> None:
        self._experiments = dict(experiments)
        self._in_campaign: dict[tuple[str, str], _InCampaign] = {}

    def ratio(self, metric: str, other: str, base: str) -> Interval | None:
        """The metric of `other` / that of `base`.

        None where an interval is missing, or one of the two is not above 0: nothing is a multiple
        of 0, and to 0 there is no share that could be averaged. None of a rehearsed experiment and
        another one, too.
        """
        first, second = self._experiments[other], self._experiments[base]
        if first.rehearsed != second.rehearsed:
            return None
        interval = self._ratio(metric, other, base)
        if interval is None or not 0 < interval.value < math.inf:
            return None
        return replace(interval, how=REHEARSED) if first.rehearsed else interval

    def _ratio(self, metric: str, other: str, base: str) -> Interval | None:
        first, second = self._experiments[other], self._experiments[base]
        if first.modeled or second.modeled:
            return _modeled_ratio(first, second, metric)
        if together := self._together(metric, other, base):
            return together.ratio(other, base)
        ratio = independent_ratio(first.estimate(metric), second.estimate(metric))
        return _known(ratio, INDEPENDENT)

    def difference(self, metric: str, other: str, base: str) -> Interval:
        """The metric of `other` − that of `base`, in its unit; NaN where one was rehearsed."""
        if len({self._experiments[name].rehearsed for name in (other, base)}) > 1:
            return UNKNOWN
        together = self._together(metric, other, base)
        paired = together.difference(other, base) if together else None
        ends = (self._experiments[name].estimate(metric) for name in (other, base))
        return paired or difference(*ends)

    def apart(self, metric: str, other: str, base: str) -> Interval:
        """As `difference`, but modeled numbers without an interval are exact."""
        interval = self.difference(metric, other, base)
        pair = [self._experiments[name] for name in (other, base)]
        if interval.has_interval or not all(experiment.modeled for experiment in pair):
            return interval
        return range_of_difference(*(run.estimate(metric) for run in pair))

    def adjusted(self, name: str) -> pd.DataFrame:
        """The `metrics` table of an experiment, times as if nothing had waited, if that is known.

        The column `adjusted` says which.
        """
        metrics = self._experiments[name].metrics
        adjusted = [
            campaign.adjusted(name) if (campaign := self._together(metric, name)) else None
            for metric in metrics.index
        ]
        if not any(adjusted):
            return metrics.assign(adjusted=False)
        estimates = [self._experiments[name].estimate(metric) for metric in metrics.index]
        shown = [new or old for new, old in zip(adjusted, estimates, strict=True)]
        columns = pd.DataFrame(
            [(number.value, number.low, number.high, number.count) for number in shown],
            columns=["value", "ci_low", "ci_high", "repeats_valid"],
            index=metrics.index,
        )
        columns = columns.astype(metrics.dtypes[columns.columns])
        return metrics.assign(**columns, adjusted=[interval is not None for interval in adjusted])

    def _together(self, metric: str, *names: str) -> "_InCampaign | None":
        """The metric in the campaign that measured it in all these experiments; None without it."""
        campaigns = {self._experiments[name].campaign for name in names}
        key = str(next(iter(campaigns))), metric
        if len(campaigns) > 1 or key not in self._rows:
            return None
        if key not in self._in_campaign:
            declared = measures().get(metric)
            errors = declared.uncertainty if declared else None
            rows = self._rows.get((key[0], errors.name)) if errors else None
            self._in_campaign[key] = _InCampaign(self._rows[key], rows)
        joint = self._in_campaign[key]
        return joint if {*names} <= joint.names else None

    @cached_property
    def _rows(self) -> dict[tuple[str, str], pd.DataFrame]:
        """The rows of all repeats by campaign and metric, with the experiments' names."""
        frames = [
            experiment.repeats.assign(name=name, campaign=experiment.campaign)
            for name, experiment in self._experiments.items()
            if experiment.repeats is not None and experiment.campaign is not None
        ]
        if not frames:
            return {}
        groups = pd.concat(frames, ignore_index=True).groupby(["campaign", "metric"])
        return {(str(campaign), str(metric)): rows for (campaign, metric), rows in groups}


class _InCampaign:
    """One metric in the rounds of a campaign; `errors` are those of its method, if it has any."""

    def __init__(self, rows: pd.DataFrame, errors: pd.DataFrame | None) -> None:
        self._rows, self._errors = rows, errors
        self.names = {*rows["name"]}
        # Experiments whose values have logarithms.
        self._positive = {*rows["name"]} - {*rows.loc[rows["value"] <= 0, "name"]}
        self._of_time = is_of_time(rows["unit"].iloc[0])
        self._found: dict[str, pd.Series] = {}

    def ratio(self, other: str, base: str) -> Interval | None:
        if {other, base} <= self._positive:
            rounds = self._rounds
            ratio = self._widened(rounds.ratio(other, base), other, base)
            how = ADJUSTED if rounds.adjusts else PAIRED
            return _known(ratio, how, rounds.count(other, base))
        first, second = self._by_round(other), self._by_round(base)
        shared = first.index.intersection(second.index)
        errors = self._error(other), self._error(base)
        ratio = paired_ratio(first[shared].tolist(), second[shared].tolist(), errors)
        return _known(ratio, PAIRED, len(shared))

    def difference(self, other: str, base: str) -> Interval | None:
        """The difference over the rounds; None where these give no interval."""
        if not {other, base} <= self._positive:
            return None
        interval = self._rounds.difference(other, base)
        if not interval.has_interval:
            return None
        return replace(interval, count=self._rounds.count(other, base))

    def adjusted(self, name: str) -> Interval | None:
        """An experiment's own value where nothing waits; None where it is not adjusted."""
        if not (self._of_time and name in self._positive and self._rounds.adjusts):
            return None
        interval = self._widened(self._rounds.value(name), name)
        return replace(interval, count=self._rounds.count(name, name))

    @cached_property
    def _rounds(self) -> Rounds:
        rows = self._rows[self._rows["name"].isin(self._positive)]
        waits = rows["waiting"].fillna(0.0) * self._of_time
        columns = (rows["name"], rows["round"], rows["value"], waits)
        return Rounds(*(column.tolist() for column in columns))

    def _by_round(self, name: str) -> pd.Series:
        """The metric in each round: the mean of a sitting's repeats."""
        if name not in self._found:
            rows = self._rows[self._rows["name"] == name]
            self._found[name] = rows.groupby("round")["value"].mean()
        return self._found[name]

    def _widened(self, found: Interval, *names: str) -> Interval:
        """An interval to which the method's errors are added, as shares of the means."""
        if self._errors is None:
            return found
        shares = [self._error(name) / float(self._by_round(name).mean()) for name in names]
        return widen_ratio(found, shares)

    def _error(self, name: str) -> float:
        """The mean error of the method; 0 for a metric without errors."""
        errors = self._errors
        return 0.0 if errors is None else float(errors.loc[errors["name"] == name, "value"].mean())


def _known(found: Interval, how: str, rounds: int = 0) -> Interval | None:
    return None if math.isnan(found.low) else replace(found, how=how, count=rounds)


def _modeled_ratio(one: ExperimentMetrics, base: ExperimentMetrics, metric: str) -> Interval | None:
    """A ratio with the range that the ends of the intervals allow.

    Two modeled numbers without intervals have no noise and are compared as they are.
    """
    number, other = one.estimate(metric), base.estimate(metric)
    noisy = number.has_interval or other.has_interval
    if not other.value > 0 or not (noisy or (one.modeled and base.modeled)):
        return None
    return _known(range_of_ratio(number, other), MODELED)

"""Comparisons of experiments: by rounds, as independent means, by a model."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from kvscope.base.statistics import Interval, estimate, independent_ratio, paired_ratio
from kvscope.metrics.estimates import (
    ADJUSTED,
    INDEPENDENT,
    PAIRED,
    Estimates,
    ExperimentMetrics,
)
from kvscope.metrics.registry import metrics_by_name
from kvscope.metrics.study import add_study_metrics

ROUNDS = 8
TIME, NET, NET_ERROR = (
    *("makespan_s", "resume_overhead_net_s", "resume_overhead_net_uncertainty_s"),
)
COUNT = "preemptions"
SETTINGS = {"cache": {"blocks": 8}}


def experiment(
    values: Mapping[str, list[float]],
    waiting: list[float] | None = None,
    campaign: str | None = "c",
    source: str = "measured",
    repeats_a_round: int = 1,
) -> ExperimentMetrics:
    """An experiment with these values by metric and repeat."""
    rows, repeats = [], []
    for metric, own in values.items():
        found = estimate(own)
        rows.append((metric, found.value, found.low, found.high, found.count, unit(metric)))
        for repeat, value in enumerate(own):
            waits = waiting[repeat] if waiting else 0.0
            number = None if campaign is None else repeat // repeats_a_round
            repeats.append((repeat, campaign, number, waits, metric, value, unit(metric)))
    columns = ["metric", "value", "ci_low", "ci_high", "repeats_valid", "unit"]
    frame = pd.DataFrame(rows, columns=columns).assign(
        experiment_id="e", valid=True, reasons="", time_source=source, run_sha256="0" * 64
    )
    columns = ["repeat", "campaign", "round", "waiting", "metric", "value", "unit"]
    return ExperimentMetrics(
        SETTINGS,
        frame.set_index("metric", drop=False),
        pd.DataFrame(repeats, columns=columns),
    )


def row(frame: pd.DataFrame, metric: str) -> dict[str, Any]:
    """The row of a `metrics` table."""
    return {str(column): frame.at[metric, column] for column in frame}


def unit(metric: str) -> str:
    return metrics_by_name()[metric].unit if metric in metrics_by_name() else "s"


def times(level: float, seed: int, waits: np.ndarray | None = None) -> list[float]:
    """Repeats that vary by 1 %, and take 1.2 times as much log time as they wait."""
    rest = np.random.default_rng(seed).normal(0, 0.01, ROUNDS)
    return (level * np.exp(rest + (0 if waits is None else 1.2 * waits))).tolist()


def pair() -> Estimates:
    """Two experiments of one campaign, of which `b` takes 1.5 times as long and waits more."""
    random = np.random.default_rng(0)
    waits = {"a": random.uniform(0, 0.5, ROUNDS), "b": random.uniform(0.2, 1, ROUNDS)}
    return Estimates(
        {
            name: experiment({TIME: times(level, seed, waits[name])}, waits[name].tolist())
            for seed, (name, level) in enumerate({"a": 2.0, "b": 3.0}.items())
        }
    )


def test_a_ratio_of_times_is_adjusted_for_waiting_and_says_of_how_many_rounds() -> None:
    ratio = pair().ratio(TIME, "b", "a")
    assert ratio is not None
    assert (ratio.how, ratio.count) == (ADJUSTED, ROUNDS)
    assert ratio.low <= 1.5 <= ratio.high
    assert ratio.value == pytest.approx(1.5, rel=0.03)
    assert ratio.side_of(1) == 1


def test_values_are_adjusted_to_where_nothing_waits_and_say_so() -> None:
    estimates = pair()
    for name, level in {"a": 2.0, "b": 3.0}.items():
        found = row(estimates.adjusted(name), TIME)
        assert found["adjusted"]
        assert found["value"] == pytest.approx(level, rel=0.03)
        assert found["ci_low"] <= level <= found["ci_high"]


def test_without_waiting_values_are_as_measured_and_ratios_are_paired() -> None:
    one, two = experiment({TIME: times(2.0, 1)}), experiment({TIME: times(3.0, 2)})
    estimates = Estimates({"a": one, "b": two})
    pd.testing.assert_frame_equal(estimates.adjusted("a").drop(columns="adjusted"), one.metrics)
    assert not estimates.adjusted("a")["adjusted"].any()
    ratio = estimates.ratio(TIME, "b", "a")
    assert ratio is not None
    assert ratio.how == PAIRED


def test_drift_from_round_to_round_is_in_no_ratio() -> None:
    drift = np.exp(np.random.default_rng(3).normal(0, 0.5, ROUNDS))
    one, two = (
        experiment({TIME: (np.array(times(level, seed)) * drift).tolist()})
        for seed, level in enumerate((2.0, 3.0))
    )
    together = Estimates({"a": one, "b": two}).ratio(TIME, "b", "a")
    alone = independent_ratio(two.estimate(TIME), one.estimate(TIME))
    assert together is not None
    assert together.low <= 1.5 <= together.high
    assert together.high / together.low < 1.05
    assert not (alone.low > 1)


def test_counts_that_every_repeat_has_are_compared_exactly_whatever_waits() -> None:
    waits = np.random.default_rng(4).uniform(0, 1, ROUNDS).tolist()
    one, two = (
        experiment({COUNT: [float(count)] * ROUNDS, TIME: times(2.0, count)}, waits)
        for count in (4, 6)
    )
    estimates = Estimates({"a": one, "b": two})
    assert estimates.ratio(COUNT, "b", "a") == Interval(1.5, 1.5, 1.5, ROUNDS, PAIRED)
    assert not row(estimates.adjusted("a"), COUNT)["adjusted"]


def test_nothing_is_a_multiple_of_what_is_not_above_0() -> None:
    none, some = (experiment({COUNT: [count] * ROUNDS}) for count in (0.0, 3.0))
    estimates = Estimates({"none": none, "some": some})
    assert estimates.ratio(COUNT, "some", "none") is None
    assert estimates.ratio(COUNT, "none", "some") is None


def test_times_that_may_be_negative_are_compared_by_their_means_over_rounds() -> None:
    random = np.random.default_rng(5)
    base, other = random.normal(1, 0.3, ROUNDS), random.normal(0.1, 0.3, ROUNDS)
    assert other.min() < 0
    ratio = Estimates(
        {"a": experiment({TIME: base.tolist()}), "b": experiment({TIME: other.tolist()})}
    ).ratio(TIME, "b", "a")
    found = paired_ratio(other.tolist(), base.tolist())
    assert ratio == Interval(found.value, found.low, found.high, ROUNDS, PAIRED)


def test_the_error_of_a_method_widens_a_ratio_and_a_value() -> None:
    def found(error: float) -> Estimates:
        waits = np.random.default_rng(6).uniform(0, 1, (2, ROUNDS))
        return Estimates(
            {
                name: experiment(
                    {NET: times(level, seed, waits[seed]), NET_ERROR: [error * level] * ROUNDS},
                    waits[seed].tolist(),
                )
                for seed, (name, level) in enumerate({"a": 2.0, "b": 3.0}.items())
            }
        )

    without, wide = (found(error).ratio(NET, "b", "a") for error in (0.0, 0.1))
    assert without is not None
    assert wide is not None
    # Shares are relative to the measured mean, which is above the adjusted mean.
    half, half_wide = (math.log(r.high / r.low) / 2 for r in (without, wide))
    assert half < half_wide < math.hypot(half, 0.1, 0.1)
    value, value_wide = (row(found(error).adjusted("a"), NET) for error in (0.0, 0.1))
    assert value_wide["ci_high"] > value["ci_high"]
    assert value_wide["value"] == value["value"]


def test_experiments_of_two_campaigns_or_without_a_campaign_are_independent() -> None:
    one = experiment({TIME: times(2.0, 1)}, campaign="c")
    for campaign in ("d", None):
        two = experiment({TIME: times(3.0, 2)}, campaign=campaign)
        estimates = Estimates({"a": one, "b": two})
        ratio = estimates.ratio(TIME, "b", "a")
        assert ratio is not None
        assert (ratio.how, ratio.count) == (INDEPENDENT, 0)
        expected = independent_ratio(two.estimate(TIME), one.estimate(TIME))
        assert (ratio.low, ratio.high) == (expected.low, expected.high)
        apart = estimates.difference(TIME, "b", "a")
        welch = stats.ttest_ind(times(3.0, 2), times(2.0, 1), equal_var=False)
        assert (apart.low, apart.high) == pytest.approx(tuple(welch.confidence_interval(0.95)))


def test_once_measured_is_not_compared_but_once_modeled_is() -> None:
    for source, expected in (
        ("measured", None),
        ("modeled", Interval(1.5, 1.5, 1.5, 0, "modeled")),
    ):
        one, two = (
            experiment({TIME: [level]}, campaign=None, source=source) for level in (2.0, 3.0)
        )
        assert Estimates({"a": one, "b": two}).ratio(TIME, "b", "a") == expected


def test_sittings_are_compared_as_wholes() -> None:
    """Three repeats in each of four sittings, each of which has an error of its own."""
    random = np.random.default_rng(7)
    values = {
        name: level * np.exp(random.normal(0, 0.1, 4).repeat(3))
        for name, level in {"a": 2.0, "b": 3.0}.items()
    }
    both = {
        name: experiment({TIME: own.tolist()}, repeats_a_round=3) for name, own in values.items()
    }
    ratio = Estimates(both).ratio(TIME, "b", "a")
    assert ratio is not None
    assert ratio.count == 4
    logs = [np.log(own[::3]) for own in values.values()]
    half = stats.t.ppf(0.975, 3) * (logs[1] - logs[0]).std(ddof=1) / math.sqrt(3)
    assert math.log(ratio.high / ratio.low) / 2 == pytest.approx(half)


def test_the_makespan_beyond_an_ample_cache_is_that_of_pairs() -> None:
    drift = np.exp(np.random.default_rng(8).normal(0, 0.3, ROUNDS))
    ample, scarce = (
        experiment(
            {TIME: (level * drift).tolist(), COUNT: [count] * ROUNDS}
            | {"kv_block_utilization_peak": [0.5] * ROUNDS}
        )
        for level, count in ((2.0, 0.0), (3.0, 4.0))
    )
    _, found = add_study_metrics([ample, scarce])
    beyond = row(found, "makespan_beyond_ample_s")
    assert beyond["value"] == pytest.approx(drift.mean())
    half = stats.t.ppf(0.975, ROUNDS - 1) * drift.std(ddof=1) / math.sqrt(ROUNDS - 1)
    assert beyond["ci_high"] - beyond["value"] == pytest.approx(half)


# ------------------------------------------------------------------ Fieller

POSITIVE = st.floats(min_value=0.1, max_value=100)


@given(POSITIVE, POSITIVE, POSITIVE, POSITIVE, st.integers(2, 9), st.integers(2, 9))
def test_a_ratio_excludes_its_ends_by_welchs_test(
    mean: float, base: float, half: float, base_half: float, count: int, base_count: int
) -> None:
    """At an end r, the interval of mean − r · base mean just reaches 0."""
    one = Interval(mean, mean - half, mean + half, count)
    other = Interval(base, base - base_half, base + base_half, base_count)
    found = independent_ratio(one, other)
    assert found.low <= found.value <= found.high
    assert math.isinf(found.high) or base > base_half
    variances = one.variance, found.value**2 * other.variance
    freedom = sum(variances) ** 2 / sum(
        v**2 / (n - 1) for v, n in zip(variances, (count, base_count), strict=True)
    )
    t = stats.t.ppf(0.975, freedom)
    for end in (found.low, found.high):
        if math.isfinite(end):
            error = math.sqrt(one.variance + end**2 * other.variance)
            assert abs(mean - end * base) == pytest.approx(t * error, rel=1e-6)


@pytest.mark.parametrize("shared", [0.0, 0.2], ids=["apart", "in common"])
def test_a_ratio_of_means_covers_the_truth(shared: float) -> None:
    random, trials, hits = np.random.default_rng(9), 2000, 0
    for _ in range(trials):
        common = random.normal(0, shared, 6)
        other, base = (mean * (1 + common) + random.normal(0, 0.2, 6) for mean in (0.5, 1.0))
        found = paired_ratio(other.tolist(), base.tolist())
        hits += found.low <= 0.5 <= found.high
    assert hits / trials >= 0.95 - 2 * math.sqrt(0.05 * 0.95 / trials)


def test_a_base_that_may_be_0_leaves_a_ratio_without_an_upper_end() -> None:
    sure, unsure = Interval(9, 8, 10, 5), Interval(1, -0.2, 2.2, 5)
    found = independent_ratio(sure, unsure)
    assert found.low > 1
    assert math.isinf(found.high)
    assert math.isnan(independent_ratio(sure, Interval(-1, -2, 0, 5)).value)

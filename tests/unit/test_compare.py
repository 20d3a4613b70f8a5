"""Metrics that a study adds to its runs: relative to an ample cache, per preemption, per second."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from kvscope import tables
from kvscope.base.statistics import Interval, difference, estimate
from kvscope.metrics.estimates import ExperimentMetrics
from kvscope.metrics.study import (
    STUDY_METRICS,
    add_study_metrics,
    cost_per_preemption,
    find_ample_partners,
    swap_bandwidth,
)

NUMBERS = st.lists(st.floats(min_value=-100, max_value=100), min_size=2, max_size=12)


def experiment(cache=None, overflow=None, valid=True, reasons="", seed=1, **metrics):
    """An experiment with these metrics, each a list of one value a repeat."""
    settings = {
        "model": {"name": "m"},
        "cache": {"block_size": 32, "blocks": None, "gib": None} | (cache or {"blocks": 8}),
        "overflow": overflow or {"name": "recompute"},
        "seed": seed,
    }
    rows = [
        (name, interval.value, interval.low, interval.high, interval.count)
        for name, values in ({"kv_block_utilization_peak": [0.5]} | metrics).items()
        if (interval := estimate(values))
    ]
    columns = ["metric", "value", "ci_low", "ci_high", "repeats_valid"]
    frame = pd.DataFrame(rows, columns=columns).assign(
        experiment_id="e",
        unit="s",
        valid=valid,
        reasons=reasons,
        time_source="measured",
        run_sha256="0" * 64,
    )[tables.METRICS.names]
    return ExperimentMetrics(settings, frame.set_index("metric", drop=False))


SCARCE = experiment(preemptions=[3, 3, 3], makespan_s=[5.0, 5.2, 5.1])
AMPLE = experiment({"gib": 2.0}, preemptions=[0, 0, 0], makespan_s=[4.0, 4.1, 3.9])


@given(NUMBERS, NUMBERS)
def test_a_difference_has_the_interval_of_welchs_test(one, other):
    assume(np.std(one) > 1e-3 and np.std(other) > 1e-3)
    result = difference(estimate(one), estimate(other))
    expected = stats.ttest_ind(one, other, equal_var=False).confidence_interval(0.95)
    assert result.value == pytest.approx(np.mean(one) - np.mean(other), abs=1e-9)
    assert (result.low, result.high) == pytest.approx((expected.low, expected.high), abs=1e-6)
    assert result.count == min(len(one), len(other))


def test_a_difference_of_numbers_without_scatter_is_exact():
    result = difference(estimate([3, 3]), estimate([1, 1]))
    assert (result.value, result.low, result.high) == (2, 2, 2)


def test_a_difference_has_no_interval_where_one_side_ran_once():
    result = difference(estimate([3, 4]), estimate([1]))
    assert result.value == 2.5
    assert math.isnan(result.low)
    assert math.isnan(result.high)


def test_an_experiment_that_preempts_is_set_beside_the_same_one_with_room():
    assert find_ample_partners([SCARCE, AMPLE]) == [AMPLE, None]


def test_the_overflow_policy_of_the_one_with_room_is_no_matter_for_it_does_nothing():
    swapping = experiment(overflow={"name": "swap", "host_gib": 1.0}, preemptions=[3, 3])
    assert find_ample_partners([swapping, AMPLE]) == [AMPLE, None]


@pytest.mark.parametrize(
    "other",
    [
        experiment({"gib": 2.0}, preemptions=[0, 0], seed=2),
        experiment({"gib": 2.0, "block_size": 16}, preemptions=[0, 0]),
        experiment({"gib": 2.0, "layout": "by_block"}, preemptions=[0, 0]),
        experiment({"gib": 2.0}, preemptions=[0, 1]),
        experiment({"gib": 2.0}),
    ],
    ids=["other seed", "other block size", "other layout", "preempts once", "not known"],
)
def test_nothing_else_may_differ_and_it_must_never_preempt(other):
    assert find_ample_partners([SCARCE, other]) == [None, None]


def test_experiments_that_gave_requests_up_did_other_work():
    gave_up = {"aborted_requests": [0, 1]}
    scarce = experiment(preemptions=[3, 3, 3], makespan_s=[5.0, 5.2, 5.1], **gave_up)
    ample = experiment({"gib": 2.0}, preemptions=[0, 0, 0], makespan_s=[4.0, 4.1, 3.9], **gave_up)
    assert find_ample_partners([scarce, AMPLE]) == [None, None]
    assert find_ample_partners([SCARCE, ample]) == [None, None]


def test_the_emptiest_of_several_ample_experiments_is_the_partner():
    fuller = experiment({"blocks": 99}, preemptions=[0], kv_block_utilization_peak=[0.9])
    emptier = experiment({"blocks": 999}, preemptions=[0], kv_block_utilization_peak=[0.1])
    assert find_ample_partners([fuller, SCARCE, emptier])[1] is emptier


def test_experiments_with_unknown_settings_are_not_compared():
    unknown = [ExperimentMetrics({}, one.metrics) for one in (SCARCE, AMPLE)]
    assert find_ample_partners(unknown) == [None, None]


def value_of(frame, metric):
    row = frame.loc[metric]
    return Interval(row["value"], row["ci_low"], row["ci_high"], row["repeats_valid"])


def test_the_metrics_are_added_with_their_units_and_as_the_table_asks():
    scarce, ample = add_study_metrics([SCARCE, AMPLE])
    tables.to_arrow(tables.METRICS, scarce.drop(columns="adjusted"))
    assert list(scarce.index[-3:]) == [metric.name for metric in STUDY_METRICS]
    assert list(scarce["unit"][-3:]) == [metric.unit for metric in STUDY_METRICS]
    pd.testing.assert_frame_equal(scarce.iloc[:-3].drop(columns="adjusted"), SCARCE.metrics)
    expected = difference(SCARCE.estimate("makespan_s"), AMPLE.estimate("makespan_s"))
    assert value_of(scarce, "makespan_beyond_ample_s") == expected
    assert math.isnan(value_of(ample, "makespan_beyond_ample_s").value)


def test_a_difference_is_to_be_believed_if_both_sides_are():
    doubtful = experiment(
        {"gib": 2.0}, preemptions=[0, 0], makespan_s=[4.0, 4.1], valid=False, reasons="stalled"
    )
    result, _ = add_study_metrics([SCARCE, doubtful])
    assert not result.at["makespan_beyond_ample_s", "valid"]
    assert result.at["makespan_beyond_ample_s", "reasons"] == "stalled"
    assert result.at["makespan_s", "valid"]


def test_the_cost_of_one_preemption_is_the_net_overhead_shared_by_all():
    overhead = [4.0, 5.0, 6.0]
    result = cost_per_preemption(
        experiment(preemptions=[10, 10, 10], resume_overhead_net_s=overhead)
    )
    each = estimate([value / 10 for value in overhead])
    assert (result.value, result.low, result.high) == pytest.approx(
        (each.value, each.low, each.high)
    )


def test_it_has_no_interval_if_repeats_preempt_differently_often():
    result = cost_per_preemption(experiment(preemptions=[10, 12], resume_overhead_net_s=[4.0, 5.0]))
    assert result.value == pytest.approx(4.5 / 11)
    assert math.isnan(result.low)


def test_without_preemptions_there_is_no_cost_of_one():
    assert math.isnan(
        cost_per_preemption(experiment(preemptions=[0], resume_overhead_net_s=[0.0])).value
    )


TIMES = st.lists(st.floats(min_value=1.0, max_value=1.2), min_size=3, max_size=3)


@given(TIMES, TIMES)
def test_the_bandwidth_is_bytes_over_seconds_and_its_interval_covers_that_of_their_sum(out, back):
    result = swap_bandwidth(experiment(swapped_bytes=[8e9] * 3, swap_out_s=out, swap_in_s=back))
    time = estimate([a + b for a, b in zip(out, back, strict=True)])
    assume(time.low > 0.1)
    assert result.value == pytest.approx(8e9 / time.value)
    assert result.low <= 8e9 / time.high * (1 + 1e-9)
    assert result.high >= 8e9 / time.low * (1 - 1e-9)


def test_where_nothing_is_swapped_there_is_no_bandwidth():
    result = swap_bandwidth(experiment(swapped_bytes=[0.0, 0.0], swap_out_s=[0.0], swap_in_s=[0.0]))
    assert math.isnan(result.value)

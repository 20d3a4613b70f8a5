"""Shape classes and stalls."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.tables import stalls


def passes(durations, prefill=0, decode=8, context=500, preempted=0) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "prefill_tokens": prefill,
            "decode_tokens": decode,
            "kv_tokens_used": context,
            "preempted_requests": preempted,
            "resumed_requests": 0,
            "duration_s": durations,
        }
    )


@given(st.integers(1, 2**40))
def test_counts_within_a_factor_of_two_share_a_class(count):
    (low,) = stalls.power_class(np.array([count]))
    assert 2 ** (low - 1) <= count < 2**low


def test_no_tokens_are_a_class_of_their_own():
    assert stalls.power_class(np.array([0, 1])).tolist() == [0, 1]


def test_a_first_use_stall_is_flagged_and_nothing_else():
    # A stall of the published chunked runs: 1.55 s among passes of 14.5 ms.
    steps = passes([0.0145, 0.0146, 0.0144, 1.55, 0.0147, 0.0143])
    assert stalls.find_stalls(steps).tolist() == [False, False, False, True, False, False]


def test_a_long_prefill_among_decodes_is_no_stall():
    steps = pd.concat([passes([0.002] * 20), passes([0.2] * 5, prefill=900)], ignore_index=True)
    assert not stalls.find_stalls(steps).any()


def test_passes_that_copy_a_victims_blocks_are_no_stalls():
    steps = pd.concat([passes([0.002] * 20), passes([0.02] * 6, preempted=1)], ignore_index=True)
    assert not stalls.find_stalls(steps).any()


def test_a_class_of_few_passes_is_not_judged():
    assert not stalls.find_stalls(passes([0.001] * 3 + [1.0])).any()


@given(st.lists(st.floats(0.001, 0.0029), min_size=5, max_size=50))
def test_ordinary_spread_is_no_stall(durations):
    assert not stalls.find_stalls(passes(durations)).any()


@given(st.floats(1e-3, 1e3))
def test_the_unit_of_time_does_not_matter(scale):
    durations = np.array([1, 1.1, 0.9, 1.05, 9, 1, 1.02])
    assert (
        stalls.find_stalls(passes(durations)) == stalls.find_stalls(passes(durations * scale))
    ).all()


def test_no_passes_no_stalls():
    assert stalls.find_stalls(passes([])).tolist() == []


def test_uncovered_classes_are_those_warm_up_did_not_meet():
    warm_up, measured = passes([1], decode=8), passes([1, 1], decode=[9, 20])
    assert stalls.uncovered_classes(measured, warm_up) == ["p0-d5-c9"]


# Each threshold: just beyond it and just within it, by less than the factor of ten that a slip of
# the decimal point would be.


@pytest.mark.parametrize(("times", "stall"), [(3.5, True), (2.5, False)])
def test_a_stall_takes_more_than_three_times_as_long_as_usual(times, stall):
    assert stalls.find_stalls(passes([1.0] * 20 + [times]))[-1] == stall


@pytest.mark.parametrize(("deviations", "stall"), [(12, True), (8, False)])
def test_a_stall_lies_ten_standard_deviations_beyond_usual_passes(deviations, stall):
    sigma = 0.3  # that many times 0.3 is more than three times the median in both cases
    spread = sigma / 1.4826  # the median distance from 1 of these passes
    usual = [1 - spread] * 20 + [1.0] * 21 + [1 + spread] * 20
    assert stalls.find_stalls(passes([*usual, 1 + deviations * sigma]))[-1] == stall


@pytest.mark.parametrize(("others", "stall"), [(5, True), (3, False)])
def test_five_passes_of_a_kind_are_enough_to_tell(others, stall):
    assert stalls.find_stalls(passes([1.0] * others + [9.0]))[-1] == stall


def test_the_usual_duration_is_the_median_of_the_kind_over_all_passes():
    steps = pd.concat([passes([1, 2, 9.0]), passes([5, 7.0], decode=99)], ignore_index=True)
    assert stalls.usual_s(steps).tolist() == [2, 2, 2, 6, 6]

"""What the report claims: only what the confidence intervals support."""

from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope import tables
from kvscope.report.data import Number, Run, StudyData
from kvscope.report.findings import findings, pairs, ratio


def run(varied, throughput=None, valid=True, preemptions=0.0, reasons="", **more):
    """A complete run whose throughput is (low, value, high); None: it failed."""
    name = "-".join(map(str, varied.values()))
    if throughput is None:
        return Run(name, name, varied, Path(), Path(), {"status": "failed"})
    low, value, high = throughput
    rows = [
        ("throughput_tokens_per_s", value, low, high),
        ("preemptions", preemptions, preemptions, preemptions),
    ]
    frame = pd.DataFrame(rows, columns=["metric", "value", "ci_low", "ci_high"]).assign(
        experiment_id=name, unit="", repeats_valid=3, valid=valid, reasons=reasons,
        time_source="measured",
    )  # fmt: skip
    metrics = frame[tables.METRICS.names].set_index("metric", drop=False)
    return Run(name, name, varied, Path(), Path(), {"status": "complete"}, metrics=metrics, **more)


def study(*runs):
    keys = tuple(dict.fromkeys(key for one in runs for key in one.varied))
    return StudyData("s", "S", "", keys, runs)


def blocks(count, *more, **others):
    return run({"cache.blocks": count}, *more, **others)


def test_a_difference_beyond_the_intervals_is_told_with_its_range():
    found = findings(study(blocks(64, (95, 100, 105)), blocks(8, (76, 80, 84), preemptions=23.0)))
    assert found == [
        "KV cache (blocks) 8 instead of 64: 20\xa0% lower throughput (95\xa0% intervals: 12\xa0% "
        "to 28\xa0%); 23 preemptions a repeat instead of 0."
    ]


def test_a_higher_throughput_is_told_alike():
    (found,) = findings(study(blocks(64, (99, 100, 101)), blocks(128, (149, 150, 151))))
    assert "50\xa0% higher throughput (95\xa0% intervals: 48\xa0% to 53\xa0%)" in found


def test_overlapping_intervals_are_no_difference():
    (found,) = findings(study(blocks(64, (80, 100, 120)), blocks(8, (70, 85, 100))))
    assert found == (
        "KV cache (blocks) 8 instead of 64: no difference in throughput beyond the noise."
    )


def test_an_interval_that_reaches_below_zero_supports_no_claim():
    (found,) = findings(study(blocks(64, (-10, 100, 210)), blocks(8, (1, 2, 3))))
    assert "no difference" in found


def test_a_ratio_without_an_upper_end_is_told_by_its_lower_one():
    (found,) = findings(study(blocks(64, (-1, 1, 2)), blocks(8, (3, 4, 5))))
    assert "higher throughput (95\xa0% intervals: at least 50\xa0%)" in found


def test_without_intervals_nothing_is_compared():
    nan = float("nan")
    (found,) = findings(study(blocks(64, (nan, 100, nan)), blocks(8, (nan, 50, nan))))
    assert "not compared" in found


def test_an_experiment_that_is_not_valid_is_not_compared_and_said_so():
    doubtful = blocks(8, (76, 80, 84), valid=False, reasons="unstable")
    found = findings(study(blocks(64, (95, 100, 105)), doubtful))
    assert found[0] == "Nothing is compared: 1 experiment valid, two are needed."
    assert "1 experiment is not valid and not compared" in found[1]
    assert "unstable: the makespan varies" in found[1]


def test_a_failed_experiment_is_not_compared():
    found = findings(study(blocks(64, (95, 100, 105)), blocks(8)))
    assert found == ["Nothing is compared: 1 experiment valid, two are needed."]


def test_experiments_that_differ_in_two_keys_are_not_compared():
    one = run({"cache.blocks": 64, "batching": "mixed"}, (95, 100, 105))
    other = run({"cache.blocks": 8, "batching": "chunked"}, (45, 50, 55))
    assert findings(study(one, other)) == [
        "Nothing is compared: no two valid experiments differ in one key alone."
    ]


def test_a_key_that_comes_with_an_option_is_told_with_it():
    mixed = run({"batching": "mixed", "batching.chunk_tokens": None}, (95, 100, 105))
    chunked = run({"batching": "chunked", "batching.chunk_tokens": 64}, (76, 80, 84))
    larger = run({"batching": "chunked", "batching.chunk_tokens": 128}, (80, 90, 99))
    found = findings(study(mixed, chunked, larger))
    assert found[0].startswith("Batching policy chunked, chunk (tokens) 64 instead of mixed: 20")
    assert found[1].startswith("Batching policy chunked, chunk (tokens) 128 instead of mixed: no")
    assert found[2].startswith("Chunk (tokens) 128 instead of 64 (batching policy chunked): no")
    assert len(found) == 3


def test_a_key_that_only_one_has_without_its_option_is_a_difference():
    fixed = run({"workload": "fixed", "cache.blocks": 64, "cache.gib": None}, (95, 100, 105))
    other = run({"workload": "zipf", "cache.blocks": None, "cache.gib": 2}, (45, 50, 55))
    assert not list(pairs(study(fixed, other)))


def test_many_pairs_of_one_change_are_summed_up():
    runs = [
        run({"seed": seed, "cache.blocks": count}, (value - 1, value, value + 1))
        for seed in range(6)
        for count, value in ((64, 100), (8, 80 + 4 * seed))
    ]
    found = findings(study(*runs))
    summary = next(sentence for sentence in found if sentence.startswith("KV cache"))
    assert summary == (
        "KV cache (blocks) 8 instead of 64, 6 pairs: lower throughput in 5 (by 4.0\xa0% to "
        "20\xa0%) and no difference beyond the noise in 1."
    )


POSITIVE = st.floats(min_value=0.01, max_value=1e6)


@given(POSITIVE, POSITIVE, POSITIVE, POSITIVE)
def test_a_ratio_differs_exactly_if_the_intervals_are_disjoint(a, b, half_a, half_b):
    one, other = Number(a, a - half_a, a + half_a), Number(b, b - half_b, b + half_b)
    found = ratio(other, one)
    if found.differs:
        assert other.low > one.high or other.high < one.low
    elif other.low > one.high * (1 + 1e-9) or other.high < one.low * (1 - 1e-9):
        pytest.fail("disjoint intervals must differ")
    assert found.low <= found.value <= found.high or found.value == pytest.approx(found.low)

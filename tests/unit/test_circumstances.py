"""Circumstances of a run in words: requests that were not met, waiting, other load."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.metrics.circumstances import (
    describe_other_load,
    describe_width,
    waiting_share,
)
from kvscope.tables.runschema import RepeatRecord
from tests.run_records import record_of

RULE = {"min": 5, "until": 0.05, "budget_s": 120, "measured": 6}


def repeats(count: int, seconds: float, **more: Any) -> dict[str, Any]:
    """The clock of repeats of this length, one right after the other."""
    return {
        "repeats": [
            {"repeat": n, "start_ns": round(n * seconds * 1e9), "duration_s": seconds, **more}
            for n in range(count)
        ]
    }


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ({"half_width_share": 0.04, "reached": True}, ""),
        ({"until": None, "half_width_share": 0.4, "reached": None}, ""),
        (
            {"half_width_share": 0.1, "reached": False},
            "± 10 % after 120 s; ± 5 % was asked, which takes about 24 repeats in 8 min",
        ),
        (
            {"half_width_share": 0.06, "reached": False},
            "± 6 % after 120 s; ± 5 % was asked, which takes about 9 repeats in 3 min",
        ),
        (
            {"half_width_share": None, "reached": False},
            "no interval after 120 s; ± 5 % was asked",
        ),
    ],
)
def test_a_width_that_was_not_reached_is_reported_with_the_needed_time(
    rule: dict[str, Any], told: str
) -> None:
    record = record_of(repeats=RULE | rule, clock=repeats(6, 20.0))
    assert describe_width(record) == told


@given(st.floats(0.051, 1.0), st.integers(2, 50))
def test_the_repeats_for_a_width_follow_from_the_root_of_their_number(
    share: float, measured: int
) -> None:
    rule = RULE | {"half_width_share": share, "reached": False, "measured": measured}
    told = describe_width(record_of(repeats=rule, clock=repeats(measured, 1.0)))
    needed = int(told.split("about ")[1].split()[0])
    assert needed - 1 < measured * (share / 0.05) ** 2 <= needed + 1e-6


def test_rounds_are_counted_for_experiments_measured_together() -> None:
    rule = RULE | {"half_width_share": 0.1, "reached": False}
    turn = {"campaign": "0" * 12, "number": 0, "place": 0}
    clock = repeats(6, 1.0, round=turn)
    clock["repeats"].append(clock["repeats"][-1] | {"repeat": 6, "profiled": True})
    told = describe_width(record_of(repeats=rule, clock=clock))
    assert told.endswith("which takes about 24 rounds in 24 s")


def test_an_earlier_rule_had_a_most_number_of_repeats() -> None:
    rule = {"min": 3, "max": 10, "until": 0.05, "measured": 10, "half_width_share": 0.1}
    told = describe_width(record_of(repeats=rule | {"reached": False}, clock=repeats(10, 1.0)))
    assert told.startswith("± 10 % after 10 repeats; ± 5 % was asked")


def test_a_run_of_before_the_rule_asked_for_nothing() -> None:
    record = record_of()
    assert describe_width(record) == describe_other_load(record) == ""


@pytest.mark.parametrize(
    ("entry", "share"),
    [
        ({"ran_s": 3.0, "waited_s": 1.0}, 0.25),
        ({"ran_s": 3.0, "waited_s": 0.0}, 0.0),
        ({"ran_s": None, "waited_s": None}, None),
        ({"ran_s": 0.0, "waited_s": 0.0}, None),
        ({}, None),
    ],
)
def test_waiting_is_a_share_of_the_time_that_threads_were_ready(
    entry: dict[str, Any], share: float | None
) -> None:
    repeat = RepeatRecord.model_validate({"repeat": 0, "start_ns": 0, "duration_s": 1.0} | entry)
    assert waiting_share(repeat) == share


@pytest.mark.parametrize("section", ["load", "disturbance"])
@pytest.mark.parametrize(
    ("shares", "told"),
    [
        ([0.3, 0.5], "0.8 of 2 CPUs (0.6 to 1.0)"),
        ([0.3, None], "0.6 of 2 CPUs (0.6 to 0.6)"),
        ([0.1, 0.1], ""),
        ([None, None], ""),
    ],
)
def test_much_use_by_other_processes_is_reported(
    section: str, shares: list[float | None], told: str
) -> None:
    """Runs of earlier versions have it beside a verdict on it, under another name."""
    load = [
        {"repeat": n, "cores": 2, "other_cpu_share": share, "disturbed": True, "why": "a loop"}
        for n, share in enumerate(shares)
    ]
    assert describe_other_load(record_of(**{section: load})) == told

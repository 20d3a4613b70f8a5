"""The rounds of a campaign: their number, and the progress that is shown."""

import math
from collections.abc import Container
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.base import rounds
from kvscope.plan.fields import MAX_REPEATS
from kvscope.plan.repeats import StoppingRule
from kvscope.run.block import Block, State, duration, serve_rounds, widest
from kvscope.run.rounds import Group

FOREVER = StoppingRule(5, until=0.05, budget_s=1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which only passes while rounds are served."""
    now = [0.0]
    monkeypatch.setattr("kvscope.run.block.time.monotonic", lambda: now[0])
    return now


class FakeGroup:
    """Engines that take so many seconds a repeat, in each round as many as `seconds` gives."""

    def __init__(self, clock: list[float], seconds: dict[str, list[float]]) -> None:
        self.clock, self.seconds = clock, seconds
        self.active = [*seconds]
        self.served: dict[str, dict[int, float]] = {name: {} for name in seconds}
        self.fails_in: dict[str, int] = {}

    def rounds_of(self, name: str, numbers: Container[int]) -> set[int]:
        return {number for number in self.served[name] if number in numbers}

    def measured(self, numbers: Container[int]) -> rounds.Rounds:
        rows = [
            (name, number, time)
            for name in self.active
            for number, time in self.served[name].items()
            if number in numbers
        ]
        names, numbers_, times = zip(*rows, strict=True) if rows else ((), (), ())
        return rounds.Rounds(names, numbers_, times, [0.0] * len(rows))

    def serve_round(self, number: int) -> None:
        for name in [*self.active]:
            if number in self.served[name]:
                continue
            if self.fails_in.get(name) == number:
                self.active.remove(name)
                continue
            own = self.seconds[name]
            took = own[len(self.served[name]) % len(own)]
            self.served[name][number] = took
            self.clock[0] += took


def served(group: FakeGroup, rule: StoppingRule, numbers: range = range(1000)) -> list[str]:
    """Progress that is shown while a block's rounds are served."""
    said: list[str] = []
    pairs = (("a", "b"),)
    serve_rounds(cast(Group, group), Block(("a", "b"), rule, pairs, numbers), said.append)
    return said


NOISY = {"a": [1.0, 1.4, 0.7, 1.2, 0.8], "b": [2.0, 1.9, 2.3]}
STEADY = {"a": [1.0, 1.01], "b": [2.0, 2.0, 2.01]}


def test_a_number_of_rounds_is_that_number(clock):
    group = FakeGroup(clock, NOISY)
    served(group, StoppingRule(4))
    assert group.served["a"].keys() == group.served["b"].keys() == {0, 1, 2, 3}


def test_rounds_end_after_the_least_if_the_comparison_is_as_narrow_as_wanted(clock):
    group = FakeGroup(clock, STEADY)
    served(group, FOREVER)
    assert [*group.served["a"]] == [*range(5)]


@settings(max_examples=8)  # one may take a thousand rounds
@given(st.floats(0.02, 0.5))
def test_rounds_go_on_until_the_comparison_is_as_narrow_as_wanted(until):
    with pytest.MonkeyPatch.context() as patch:
        now = [0.0]
        patch.setattr("kvscope.run.block.time.monotonic", lambda: now[0])
        group = FakeGroup(now, NOISY)
        rule = StoppingRule(2, until=until, budget_s=1e9)
        served(group, rule)
    count = len(group.served["a"])
    widths = [widest(group.measured(range(number)), [("a", "b")]) for number in range(2, count + 1)]
    assert widths[-1] <= until or count == MAX_REPEATS
    assert all(width > until for width in widths[:-1])


def test_the_round_in_which_the_budget_ends_is_the_last(clock):
    group = FakeGroup(clock, {"a": [1.0, 2.0], "b": [2.0, 0.5]})
    served(group, StoppingRule(2, until=1e-9, budget_s=10))
    times = [group.served["a"][n] + group.served["b"][n] for n in group.served["a"]]
    assert sum(times) >= 10
    assert sum(times[:-1]) < 10


def test_the_least_rounds_are_served_whatever_the_budget(clock):
    group = FakeGroup(clock, NOISY)
    served(group, StoppingRule(7, until=1e-9, budget_s=0.001))
    assert len(group.served["a"]) == 7


@given(st.integers(0, 7), st.booleans())
def test_a_block_that_goes_on_serves_no_round_twice(before, half):
    """`half`: of the last round, one engine has its repeat."""
    now = [0.0]
    group = FakeGroup(now, NOISY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvscope.run.block.time.monotonic", lambda: now[0])
        if before:
            served(group, StoppingRule(before))
        if half:
            group.served["a"][before] = 1.0
        earlier = {name: dict(own) for name, own in group.served.items()}
        served(group, StoppingRule(8))
    for name, own in group.served.items():
        assert own.keys() == {*range(8)}
        assert own.items() >= earlier[name].items()


def test_time_that_was_spent_before_counts(clock):
    rule = StoppingRule(2, until=1e-9, budget_s=30)
    whole = FakeGroup(clock, NOISY)
    served(whole, rule)
    group = FakeGroup(clock, NOISY)
    served(group, StoppingRule(3))
    served(group, rule)
    assert group.served == whole.served


def test_a_new_engine_takes_part_from_the_last_round_on(clock):
    """Rounds before it are of another time."""
    group = FakeGroup(clock, NOISY)
    group.served["a"] = {0: 1.0, 1: 1.0, 2: 1.0}
    served(group, StoppingRule(3))
    assert group.served["b"].keys() == {2, 3, 4}
    assert group.served["a"].keys() == {*range(5)}


def test_rounds_of_other_blocks_do_not_count(clock):
    """The engine that two groups share is in rounds of both."""
    group = FakeGroup(clock, NOISY)
    group.served["a"] = dict.fromkeys(range(0, 20, 2), 1e3)
    served(group, StoppingRule(3, until=1e-9, budget_s=14), range(1, 1000, 2))
    own = group.rounds_of("a", range(1, 1000, 2))
    assert own == group.served["b"].keys()
    assert sum(group.served["a"][n] + group.served["b"][n] for n in own) >= 14


def test_an_engine_that_fails_does_not_hold_up_the_others(clock):
    group = FakeGroup(clock, NOISY)
    group.fails_in = {"b": 2}
    served(group, StoppingRule(4))
    assert group.served["a"].keys() == {0, 1, 2, 3}
    assert group.served["b"].keys() == {0, 1}
    group.fails_in = {"a": 4}
    served(group, StoppingRule(6))
    assert group.active == []


def test_without_a_comparison_the_values_decide():
    times = [1.0, 1.2, 0.9]
    measured = rounds.Rounds(["a"] * 3, [0, 1, 2], times, [0.0] * 3)
    assert widest(measured, [("a", "b")]) == measured.value("a").half_width_share
    assert math.isnan(widest(rounds.Rounds([], [], [], []), []))


STATES = st.builds(
    State,
    rule=st.builds(
        StoppingRule, st.integers(2, 20), st.none() | st.floats(1e-3, 1), st.none() | st.just(60.0)
    ),
    engines=st.integers(1, 9),
    complete=st.integers(0, 50),
    half_width_share=st.just(math.nan) | st.floats(0, 10),
    elapsed_s=st.floats(0, 1e4),
)


@given(STATES)
def test_a_state_expects_no_fewer_rounds_than_there_are(state):
    assert state.expected >= max(state.complete, state.rule.min)
    if state.complete:
        assert state.left_s >= 0
    text = str(state)
    assert "nan" not in text
    assert ("left" in text) == (bool(state.complete) and not state.ended)


@pytest.mark.parametrize(
    ("complete", "width", "elapsed_s", "text"),
    [
        (0, math.nan, 0, "3 engines warm, round 1 of 5"),
        (1, math.nan, 10, "round 1 of 5, 40 s left"),
        (3, 0.1, 30, "round 3 of 12, ± 10 %, 1 min 30 s left"),
        (3, 0.07, 3, "round 3 of 6, ± 7 %, 3 s left"),
        (6, 0.05, 60, "round 6 of 6, ± 5 %"),
        (12, 0.09, 120, "round 12 of 12, ± 9 %"),
    ],
)
def test_a_state_in_words(complete, width, elapsed_s, text):
    rule = StoppingRule(5, until=0.05, budget_s=120)
    assert str(State(rule, 3, complete, width, elapsed_s)) == text


def test_a_number_of_rounds_in_words():
    assert str(State(StoppingRule(8), 2, 2, 0.5, 10)) == "round 2 of 8, ± 50 %, 30 s left"


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (100, "1 min 40 s")])
def test_a_duration_in_words(seconds, text):
    assert duration(seconds) == text

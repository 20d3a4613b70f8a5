"""Figures of a large study show a part of its experiments."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from kvscope.report.data import ReportedRun
from kvscope.report.figures.spread import SMALL, evenly, some_of, spread


def runs(policies: int, seeds: int) -> list[ReportedRun]:
    """Runs of each policy with each seed, the seed varied last."""
    varied = [{"overflow": p, "seed": s} for p in range(policies) for s in range(seeds)]
    return [ReportedRun(str(n), "", row, Path()) for n, row in enumerate(varied)]


@given(st.integers(1, SMALL), st.integers(1, 60))
def test_a_small_study_shows_its_first_experiments(count: int, most: int) -> None:
    small = runs(count, 1)
    assert spread(small, most) == small[:most]


@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 60))
def test_a_part_has_its_size_and_the_order_of_the_study(p: int, s: int, most: int) -> None:
    every = runs(p, s)
    shown = spread(every, most)
    assert len(shown) == min(most, len(every))
    assert shown == sorted(shown, key=every.index)


def test_other_seeds_are_shown_last() -> None:
    assert {run.varied["overflow"] for run in spread(runs(12, 20), 12)} == {*range(12)}
    assert {run.varied["seed"] for run in spread(runs(80, 3), 12)} == {0}


def test_what_is_left_out_lies_between_what_is_shown() -> None:
    assert evenly(range(100), 4) == [0, 25, 50, 75]
    assert evenly([], 4) == evenly([1], 0) == []


def test_a_figure_says_how_many_experiments_it_shows() -> None:
    assert some_of(12, 12) == ()
    assert some_of(12, 438) == ("12 of 438 experiments are shown, spread evenly over them.",)

"""Which range is open when: the rules for instants that several events share."""

import numpy as np
import pytest

from kvscope.collect.nsys.nesting import NONE, Nesting

Interval = tuple[int, int]


def nesting(*ranges: Interval) -> Nesting:
    start, end = np.array(ranges, np.int64).reshape(-1, 2).T
    return Nesting(np.zeros(len(ranges), np.int64), start, end)


def innermost(nested: Nesting, interval: Interval) -> int:
    thread, start, end = (np.array([value]) for value in (0, *interval))
    frame = int(nested.innermost(thread, start, end)[0])
    return NONE if frame == NONE else int(nested.frame_range[frame])


def stack(nested: Nesting, interval: Interval) -> list[int]:
    """The ranges around an interval, the innermost first."""
    thread, start, end = (np.array([value]) for value in (0, *interval))
    frame = int(nested.innermost(thread, start, end)[0])
    found = []
    while frame != NONE:
        found.append(int(nested.frame_range[frame]))
        frame = int(nested.frame_parent[frame])
    return found


def test_nothing_contains_anything_where_there_are_no_ranges() -> None:
    assert innermost(nesting(), (1, 2)) == NONE


def test_another_thread_s_range_contains_nothing() -> None:
    nested = nesting((0, 10))
    assert nested.innermost(np.array([1]), np.array([2]), np.array([3])).tolist() == [NONE]


@pytest.mark.parametrize(
    ("interval", "expected"),
    [((0, 1), 0), ((3, 4), 1), ((4, 6), 0), ((6, 7), 2), ((6, 8), 2), ((6, 9), 0), ((9, 11), NONE)],
)
def test_a_range_contains_what_starts_no_earlier_and_ends_no_later(
    interval: Interval, expected: int
) -> None:
    assert innermost(nesting((0, 10), (2, 4), (6, 8)), interval) == expected


def test_of_touching_ranges_the_later_one_is_open() -> None:
    nested = nesting((0, 5), (5, 9))
    assert nested.range_parent.tolist() == [NONE, NONE]
    assert innermost(nested, (5, 6)) == 1


def test_of_equal_ranges_the_first_is_the_outermost() -> None:
    assert nesting((2, 4), (2, 4), (2, 4)).range_parent.tolist() == [NONE, 0, 1]


@pytest.mark.parametrize("at", [1, 3, 5])
def test_a_range_of_no_length_nests_in_what_is_open_at_its_instant(at: int) -> None:
    assert nesting((0, 9), (1, 5), (at, at)).range_parent.tolist() == [NONE, 0, 1]


def test_a_range_of_no_length_contains_nothing() -> None:
    assert innermost(nesting((0, 9), (4, 4)), (4, 5)) == 0


def test_a_range_that_ends_before_it_starts_has_no_length() -> None:
    assert nesting((0, 9), (4, 2)).range_parent.tolist() == [NONE, 0]


def test_ranges_that_cross_are_both_around_what_both_contain() -> None:
    nested = nesting((0, 10), (5, 15), (6, 14))
    assert nested.range_parent.tolist() == [NONE, NONE, 1]
    assert stack(nested, (2, 3)) == [0]
    assert stack(nested, (7, 8)) == [2, 1, 0]
    assert stack(nested, (11, 12)) == [2, 1]
    assert stack(nested, (14, 15)) == [1]

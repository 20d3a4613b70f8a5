"""How many stretches of consecutive blocks a modeled copy counts."""

from itertools import groupby

import pytest

from kvscope_model.engine.cost import stretches


@pytest.mark.parametrize(
    "blocks", [[], [4], [4, 5, 6], [4, 6, 5], [6, 5, 4], [0, 1, 9, 10, 3], [7, 8, 8, 9]]
)
def test_a_stretch_ends_before_a_block_that_does_not_follow(blocks: list[int]):
    places = groupby(enumerate(blocks), lambda one: one[1] - one[0])
    assert stretches(blocks) == len([*places])


def test_a_copy_issues_a_call_for_each_stretch():
    assert stretches(range(100)) == 1
    assert stretches(range(0, 100, 2)) == 50

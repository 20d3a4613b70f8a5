"""Tokens that a prompt shares with earlier blocks equal those of a comparison with each."""

import random

import numpy as np
import pytest

from kvscope_explain.branches import Branches, encode


@pytest.mark.parametrize("seed", range(30))
def test_shared_tokens_are_those_of_a_comparison_with_each(seed: int) -> None:
    chance = random.Random(seed)
    blocks = [
        [chance.choice([1, 2, 300, 70_000]) for _ in range(chance.randint(1, 8))] for _ in range(40)
    ]
    computed = [chance.choice([0, 2, 8]) for _ in blocks]
    branches = Branches(
        lambda branch: encode(np.array(blocks[branch[1]], np.int64)),
        lambda branch: computed[branch[1]],
    )
    for place in range(30):
        branches.add("chain", ("request", place))
    for block in blocks:
        expected = max(min(common(block, blocks[place]), computed[place]) for place in range(30))
        assert branches.shared_tokens("chain", encode(np.array(block, np.int64))) == expected
    assert branches.shared_tokens("another", b"\0\0\0\1") == 0


def common(one: list[int], other: list[int]) -> int:
    """First tokens in which two blocks agree."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))

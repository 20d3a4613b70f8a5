"""Reuse distances equal those of a plain list of uses; a loop's are the loop without the asker."""

import random

import pytest

from kvscope_explain.uses import BlockUses


@pytest.mark.parametrize("seed", range(20))
def test_distances_are_those_of_a_plain_list(seed: int) -> None:
    chance, uses, plain = random.Random(seed), BlockUses(), list[set[int]]()
    for _ in range(chance.randint(1, 120)):
        blocks = chance.choices(range(40), k=chance.randint(0, 9))
        uses.use(blocks)
        if blocks:
            plain.append(set(blocks))
        for block in {b for used in plain for b in used}:
            last = max(event for event, used in enumerate(plain, 1) if block in used)
            later = set[int]().union(*plain[last:])
            assert uses.last_use(block) == last
            assert uses.since(last) == len(later)


def test_distance_in_a_loop_is_that_of_all_others() -> None:
    uses, sizes = BlockUses(), [3, 7, 1, 12]
    for lap in range(4):
        for request, size in enumerate(sizes):
            blocks = [(request, place) for place in range(size)]
            if lap:
                distances = {uses.since(uses.last_use(block)) for block in blocks}
                assert distances == {sum(sizes) - size}
            uses.use(blocks)


def test_blocks_never_used_are_not_in_it() -> None:
    uses = BlockUses()
    uses.use([1, 2])
    assert 1 in uses
    assert 3 not in uses

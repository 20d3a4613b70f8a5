"""Sentences on tokens that were evicted: the pool's size, and the host tier's."""

from collections import Counter

import pytest

from kvscope_explain import tokens
from kvscope_explain.token_words import sentences
from kvscope_explain.tokens import Account, Accounts, Eviction


def told(host_blocks: int, *evicted: tuple[int, int | None]) -> str:
    """The sentence on tokens that were evicted at reuse distances, with blocks held since."""
    count = Counter({Eviction(*each): 16 for each in evicted})
    account = Account(
        asked=count.total(), computed=Counter({tokens.EVICTED: count.total()}), evicted=count
    )
    accounts = Accounts({"7": account}, {"7": 64}, {}, True, 307, 16, 2**23, host_blocks)
    ((_, sentence),) = sentences(accounts, "7")
    return sentence


@pytest.mark.parametrize(
    ("host_blocks", "evicted", "expected"),
    [
        (0, [(15_945, None)], "reuse distance 15,945 blocks exceeds the pool's 307"),
        (
            1_664,
            [(15_945, None)],
            "reuse distance 15,945 blocks exceeds the pool's 307 and the host tier's 1,664",
        ),
        (
            20_000,
            [(15_945, None), (16_000, None)],
            "reuse distances of 15,945 to 16,000 blocks exceed the pool's 307; of 32 tokens it is "
            "below the host tier's 20,000, which did not have them",
        ),
        (
            0,
            [(200, 300)],
            "although its reuse distance 200 blocks is below the pool's 307: requests that ran "
            "held up to 300",
        ),
    ],
)
def test_a_reuse_distance_is_told_beside_what_it_exceeds(
    host_blocks: int, evicted: list[tuple[int, int | None]], expected: str
) -> None:
    assert told(host_blocks, *evicted) == f"evicted: {expected}"

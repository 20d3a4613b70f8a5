"""Preemptions to come, against a plain simulation of vLLM's order, one pass after another."""

from hypothesis import given
from hypothesis import strategies as st

from kvscope_offload.overflow.outlook import preempted_again, preemptions, resuming_together
from kvscope_offload.overflow.victims import Growth

LIMITS = {"most_tokens": 100, "most_requests": 8}
growths = st.tuples(st.integers(1, 60), st.integers(0, 60)).map(lambda g: Growth(g[0], sum(g)))


def blocks_of(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)


def simulated(
    ahead: list[Growth], own: Growth, block_size: int, blocks: int
) -> list[tuple[int, int]]:
    """The own request's tokens at each preemption, and its pass.

    First come, first served, and the last one goes.
    """
    result, pass_, have, waits = [], 0, own.tokens, False
    while have <= own.most:
        others = sum(
            blocks_of(tokens + pass_, block_size)
            for tokens, most in ahead
            if tokens + pass_ <= most
        )
        fits = others + blocks_of(have, block_size) <= blocks
        if not fits and not waits:
            result.append((have - 1, pass_))
        waits = not fits
        have += fits
        pass_ += 1
    return result


@given(st.lists(growths, max_size=6), growths, st.integers(1, 9), st.integers(0, 40))
def test_it_equals_a_simulation_of_each_pass(ahead, own, block_size, spare):
    """In any cache in which the request and those before it have room when it begins."""
    begun = sum(blocks_of(growth.tokens, block_size) for growth in [*ahead, own])
    alone = max(blocks_of(growth.most, block_size) for growth in [*ahead, own])
    blocks = max(begun, alone) + spare
    result = preemptions(ahead, own, block_size, blocks)
    assert list(result) == simulated(ahead, own, block_size, blocks)


@given(growths, st.integers(1, 9))
def test_a_request_alone_is_never_preempted(own, block_size):
    blocks = blocks_of(own.most, block_size)
    assert preemptions([], own, block_size, blocks) == ()


def test_requests_that_end_together_let_all_that_wait_resume_in_one_pass():
    """Four requests of 8 to 12 tokens in blocks of 4: the cache holds three at their end."""
    ahead = [Growth(8, 12)] * 3
    assert resuming_together(ahead, [8], 4, 9, **LIMITS) == 1
    assert resuming_together(ahead, [8, 8, 8], 4, 9, **LIMITS) == 3
    assert resuming_together(ahead, [8, 8, 8], 4, 9, **(LIMITS | {"most_tokens": 20})) == 2
    # The third of those ahead will find no room and waits, too.
    assert resuming_together(ahead, [8, 8], 4, 8, **LIMITS) == 3


def test_only_as_many_resume_as_one_that_ends_gives_room():
    ahead = [Growth(8, 12), Growth(8, 40)]
    assert resuming_together(ahead, [8, 8, 8], 4, 6, **LIMITS) == 1
    assert resuming_together(ahead, [8, 8, 8], 4, 7, **LIMITS) == 2
    assert resuming_together([], [8], 4, 6, **LIMITS) == 1


def test_no_more_resume_than_requests_may_run_beside_those_that_go_on():
    ending = [Growth(8, 12)] * 3
    for limit in (1, 2, 3):
        few = LIMITS | {"most_requests": limit}
        assert resuming_together(ending, [8, 8, 8], 4, 9, **few) == limit
    goes_on = [Growth(8, 12), Growth(8, 40)]
    assert resuming_together(goes_on, [8, 8, 8], 4, 7, **LIMITS) == 2
    assert resuming_together(goes_on, [8, 8, 8], 4, 7, **(LIMITS | {"most_requests": 2})) == 1


def by_0_4_2(ahead: list[Growth], tokens: int, block_size: int, blocks: int, watermark: int) -> int:
    """Preemptions of a victim until it goes on or has to wait: a simulation."""
    again, holds = 0, 0
    for _ in range(10 * block_size):
        ahead = [growth.after(1) for growth in ahead if growth.tokens < growth.most]
        used = sum(blocks_of(growth.tokens, block_size) for growth in ahead)
        if holds:  # the last to be served, it goes on only if a block is free, needed or not
            if used + holds < blocks:
                break
            again, holds, tokens = again + 1, 0, tokens + 1
        else:
            holds = blocks_of(tokens + 1, block_size)
            if used + holds + watermark > blocks:
                break
    return again


@given(
    st.lists(growths, min_size=1, max_size=6),
    st.integers(1, 60),
    st.integers(1, 9),
    st.integers(-3, 3),
    st.integers(0, 2),
)
def test_a_victim_is_preempted_at_once_as_often_as_by_the_rules_of_0_4_2(
    ahead, tokens, block_size, spare, watermark
):
    begun = sum(
        blocks_of(growth.tokens + 1, block_size) for growth in ahead if growth.tokens < growth.most
    )
    blocks = max(1, begun + blocks_of(tokens + 1, block_size) + spare)
    result = preempted_again(ahead, tokens, block_size, blocks, watermark)
    assert result == by_0_4_2(ahead, tokens, block_size, blocks, watermark)


def test_a_victim_takes_the_last_block_until_another_needs_it():
    """A request ahead has 1 of 8 tokens of a block, and one more in every second pass."""
    assert preempted_again([Growth(1, 99)], 7, 8, 2, 0) == 1  # then its own ninth token needs two
    assert preempted_again([Growth(1, 99)], 1, 8, 2, 0) == 4
    assert preempted_again([Growth(1, 99)], 1, 8, 2, 1) == 0
    assert preempted_again([Growth(1, 99)], 1, 8, 3, 0) == 0

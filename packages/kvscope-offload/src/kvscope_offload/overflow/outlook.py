"""Preemptions of a request that begins, if it and those before it generate all they may.

vLLM preempts the running request that came last. So a request is preempted once it and those that
run before it need more blocks than there are, whatever comes behind them, and it resumes once
enough of these have ended. How far each of them may grow is known when it begins.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import count, pairwise
from typing import NamedTuple

import numpy as np

from kvscope_offload.overflow.victims import Growth


class Preemption(NamedTuple):
    """Tokens of a request in the cache when it is preempted, and the passes until then."""

    tokens: int
    passes: int


def preemptions(
    ahead: Sequence[Growth], own: Growth, block_size: int, blocks: int
) -> tuple[Preemption, ...]:
    """A request's preemptions, behind those `ahead`, in a cache of so many blocks.

    Each request that runs computes one token a pass. A request that is preempted resumes with its
    tokens and one more.
    """
    tokens, most = np.array(ahead, np.int64).reshape(-1, 2).T
    ends = most - tokens  # the last pass of each, from now

    def needed(pass_: int) -> int:
        """Blocks that those ahead need in a pass."""
        return int((-(-(tokens + pass_) // block_size) * (ends >= pass_)).sum())

    lasts = np.unique(ends).tolist()
    foreseen: list[Preemption] = []
    now, have = 0, own.tokens
    while True:

        def overflows(pass_: int, begin: int = now - have) -> bool:
            return needed(pass_) - (begin - pass_) // block_size > blocks

        own_last = now + own.most - have
        # Until one of them ends, the blocks that they need only grow.
        stops = [now - 1, *(stop for stop in lasts if now <= stop < own_last), own_last]
        parts = (range(before + 1, stop + 1) for before, stop in pairwise(stops))
        part = next((part for part in parts if overflows(part[-1])), None)
        if part is None:
            return tuple(foreseen)
        passes = part[bisect_left(part, True, key=overflows)]
        have += passes - now
        foreseen.append(Preemption(have - 1, passes))
        blocks_held = -(-have // block_size)
        resumes = (stop + 1 for stop in lasts if stop >= passes)
        now = next((pass_ for pass_ in resumes if needed(pass_) + blocks_held <= blocks), passes)
        if now == passes:
            return tuple(foreseen)  # it alone is too large


def preempted_again(
    ahead: Sequence[Growth], tokens: int, block_size: int, blocks: int, watermark: int
) -> int:
    """Number of further preemptions of a victim of so many tokens in the pass after it resumes.

    vLLM 0.4.2 lets requests go on only while a block is free, but lets one that is recomputed
    resume into the last one if there is no watermark. Every second pass is then for nothing
    until those `ahead` need another block, or one of them ends.
    """
    for again in count():
        resumes, own_blocks = 1 + 2 * again, -(-(tokens + 1 + again) // block_size)
        used, later = (
            sum(
                -(-(growth.tokens + passes) // block_size)
                for growth in ahead
                if growth.after(passes).runs
            )
            for passes in (resumes, resumes + 1)
        )
        if used + own_blocks + watermark > blocks or later + own_blocks < blocks:
            return again
    raise AssertionError


def resuming_together(
    ahead: Sequence[Growth],
    queue: Sequence[int],
    block_size: int,
    blocks: int,
    most_tokens: int,
    most_requests: int,
) -> int:
    """Number of requests that resume or begin in one pass, after one of those `ahead` has ended.

    `queue` has the tokens of those that wait, a victim first. Those that run before it wait, too,
    if the cache has no room for them until then. A pass computes at most `most_tokens` tokens, and
    at most `most_requests` requests, with those that go on.
    """
    if not ahead:
        return 1
    tokens, most = np.array(ahead, np.int64).reshape(-1, 2).T
    end = (most - tokens).min()
    own_blocks = -(-(tokens + end) // block_size)
    running = int(np.searchsorted(own_blocks.cumsum(), blocks, side="right"))
    stays = own_blocks[:running][(most - tokens)[:running] > end]
    waiting = np.concatenate([tokens[running:] + end, np.array(queue, np.int64)])
    fits = (-(-waiting // block_size)).cumsum() <= blocks - stays.sum()
    fits &= waiting.cumsum() <= most_tokens
    return max(1, min(int(fits.sum()), most_requests - len(stays)))

"""The modeled accesses to the cache against a plain loop over requests, tiles, heads and blocks."""

import random
from collections import Counter

import numpy as np
import pytest

from kvscope_kernels.kv_events import K_READ, K_WRITE, V_READ, V_WRITE
from kvscope_model.engine.accesses import TILE_TOKENS, Row, reads, writes

WORKERS, HEADS, DURATION_NS = 7, 4, 10_007


def drawn(seed: int, block_size: int) -> list[Row]:
    """A batch of prompts, chunks and decodes, each with blocks of its own."""
    draw = random.Random(seed)
    rows, free = [], iter(range(1, 10_000))
    for _ in range(draw.randint(1, 9)):
        context = draw.choice([0, 1, 15, 16, 200])
        tokens = 1 if context and draw.random() < 0.5 else draw.randint(1, 300)
        blocks = [next(free) for _ in range(-(-(context + tokens) // block_size))]
        rows.append(Row(tokens, context, blocks))
    return rows


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_each_token_is_written_once_to_its_slot(seed: int, block_size: int) -> None:
    rows = drawn(seed, block_size)
    result: Counter[tuple[int, ...]] = Counter()
    for event in writes(rows, block_size, WORKERS, DURATION_NS).events:
        for offset in range(event["offset_tokens"], event["offset_tokens"] + event["tokens"]):
            result[event["kind"], event["row"], event["block"], offset] += 1
    expected = Counter(
        (kind, number, row.blocks[token // block_size], token % block_size)
        for number, row in enumerate(rows)
        for token in range(row.context, row.context + row.tokens)
        for kind in (K_WRITE, V_WRITE)
    )
    assert result == expected


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("block_size", "head_stride"), [(1, 2), (16, 1), (64, 4)])
def test_each_tile_reads_every_block_up_to_its_end(
    seed: int, block_size: int, head_stride: int
) -> None:
    rows = drawn(seed, block_size)
    events = reads(rows, block_size, HEADS, head_stride, WORKERS, DURATION_NS).events
    columns = ("kind", "row", "kv_head", "block", "block_position", "tokens")
    result = Counter(zip(*(events[name].tolist() for name in columns), strict=True))
    expected: Counter[tuple[int, ...]] = Counter()
    for number, row in enumerate(rows):
        total = row.context + row.tokens
        for begin in range(row.context, total, TILE_TOKENS):
            end = min(begin + TILE_TOKENS, total)
            for position in range(-(-end // block_size)):
                tokens = min(block_size, end - position * block_size)
                for head in range(0, HEADS, head_stride):
                    for kind in (K_READ, V_READ):
                        expected[kind, number, head, row.blocks[position], position, tokens] += 1
    assert result == expected


@pytest.mark.parametrize("seed", range(5))
def test_the_events_of_a_multiprocessor_follow_one_another_within_the_kernel(seed: int) -> None:
    rows = drawn(seed, 16)
    ends = []
    for found in (
        writes(rows, 16, WORKERS, DURATION_NS),
        reads(rows, 16, HEADS, 1, WORKERS, DURATION_NS),
    ):
        assert found.counts.sum() == len(found.events)
        for events in np.split(found.events, np.cumsum(found.counts)[:-1]):
            start = events["start_ticks"].astype(np.int64)
            end = start + events["duration_ticks"]
            assert (start[1:] == end[:-1]).all()
            ends += end.tolist()
        assert max(ends) == DURATION_NS

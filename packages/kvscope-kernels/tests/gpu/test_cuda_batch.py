"""The work of a batch: each token written once, each query once, and room for each event."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvscope_kernels.engine.cuda.batch import MAX_SPLITS, choose_splits, cut_batch

requests = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 90)), min_size=1, max_size=8)


def cut(requests, block_size=16, kv_heads=2, tile=16, processors=8):
    context, queries = np.array(requests).T
    starts = np.concatenate(([0], np.cumsum(queries)))
    return cut_batch(starts, context + queries, block_size, kv_heads, tile, processors)


def tokens_of(requests):
    """(row, token of the batch, position in the request) of every new token."""
    rows = [(row, before + n) for row, (before, new) in enumerate(requests) for n in range(new)]
    return [(row, token, position) for token, (row, position) in enumerate(rows)]


@given(requests, st.integers(1, 40))
def test_pieces_are_the_new_tokens_cut_at_blocks(requests, block_size):
    pieces = cut(requests, block_size).pieces
    # A piece begins at the block's first slot, or at the request's first new token.
    results = [
        (row, first + n, max(position * block_size, requests[row][0]) + n)
        for row, first, count, position in pieces.tolist()
        for n in range(count)
    ]
    assert results == tokens_of(requests)
    assert all(
        p // block_size == position
        for (_, _, count, position), p in zip(
            pieces.tolist(), _starts(results, pieces), strict=True
        )
    )


def _starts(found, pieces):
    places = np.concatenate(([0], np.cumsum(pieces[:, 2])))[:-1]
    return [found[place][2] for place in places]


@given(requests, st.integers(1, 70))
def test_tiles_are_the_queries_of_one_request_in_order(requests, tile):
    work = cut(requests, tile=tile)
    assert (work.decode.rows[:, 2] == 1).all()
    results = [
        (row, first + n, before + n)
        for tiles in (work.decode, work.prefill)
        for row, first, count, before in tiles.rows.tolist()
        for n in range(count)
    ]
    assert sorted(results) == tokens_of(requests)
    assert (work.prefill.rows[:, 2] <= tile).all()
    alone = {row for row, (_, new) in enumerate(requests) if new == 1}
    assert set(work.decode.rows[:, 0].tolist()) == alone


@given(requests, st.integers(1, 5), st.integers(1, 132))
def test_each_tile_has_room_for_its_reads_and_no_other(requests, head_stride, processors):
    work = cut(requests, kv_heads=5, processors=processors)
    heads = len(range(0, 5, head_stride))
    for tiles in (work.decode, work.prefill):
        blocks = -(-(tiles.rows[:, 2] + tiles.rows[:, 3]) // 16)
        ends = [*tiles.places(head_stride)[1:], tiles.events(head_stride)][: len(blocks)]
        assert (np.array(ends) - tiles.places(head_stride) >= 2 * blocks * heads).all()
        assert (tiles.shares * tiles.splits >= blocks).all()
        assert tiles.segments(head_stride) == len(blocks) * heads * tiles.splits


@given(st.integers(1, 300), st.integers(1, 40), st.integers(0, 600), st.integers(1, 144))
def test_sequences_are_split_to_fill_the_gpu_and_no_further(tiles, heads, blocks, processors):
    splits = choose_splits(tiles, heads, blocks, processors)
    assert 1 <= splits <= MAX_SPLITS
    assert splits == 1 or blocks >= 4 * splits
    assert splits == 1 or tiles * heads * (splits - 1) < 4 * processors

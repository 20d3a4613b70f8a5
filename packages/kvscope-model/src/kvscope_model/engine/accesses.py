"""The accesses to the cache of one layer of a pass, as events with modeled times.

They are those of kvscope's attention kernels (docs/TRACE_SPEC.md): a write of K and of V for each
piece of a block, and for each tile of queries and KV head a read of K of every block up to the
tile's end, then of V. Pieces, and tiles with their heads, go to the device's multiprocessors in
turn. Accesses to blocks take equally long; the busiest multiprocessor ends with its kernel.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kvscope_kernels import kv_events
from kvscope_kernels.engine import flush
from kvscope_model.arraytypes import Int64s

TILE_TOKENS = 128  # queries of a thread block of FlashAttention, and of the chunked-prefill kernel
K_AND_V = 2


class Row(NamedTuple):
    """A request of a pass: tokens computed, those in the cache before, and its block ids."""

    tokens: int
    context: int
    blocks: Sequence[int]


class Accesses(NamedTuple):
    """Events of one kernel, multiprocessor after multiprocessor.

    `counts` has the events of each multiprocessor; starts count from the kernel's, in ns.
    """

    events: flush.Column  # events.RECORD
    counts: Int64s


def writes(rows: Sequence[Row], block_size: int, workers: int, duration_ns: int) -> Accesses:
    """The events of the kernel that writes K and V of a pass."""
    pieces = np.array(
        [
            (number, position, row.blocks[position], begin - position * block_size, end - begin)
            for number, row in enumerate(rows)
            for position, begin, end in _pieces(row, block_size)
        ],
        np.int64,
    ).reshape(-1, 5)
    items = np.arange(len(pieces))
    order, begin, most = _in_turn(np.full(len(items), K_AND_V), workers)
    item = np.repeat(order, K_AND_V)
    is_value = np.tile(np.arange(K_AND_V), len(items))
    number, position, block, offset, tokens = pieces[item].T
    events = np.zeros(len(item), kv_events.RECORD)
    events["kind"], events["row"] = kv_events.K_WRITE + is_value, number
    events["kv_head"] = kv_events.RECORD_ALL_HEADS
    events["block"], events["block_position"] = block, position
    events["offset_tokens"], events["tokens"] = offset, tokens
    _set_times(events, np.repeat(begin, K_AND_V) + is_value, most, duration_ns)
    return Accesses(events, np.bincount(item % workers, minlength=workers))


def reads(
    rows: Sequence[Row],
    block_size: int,
    heads: int,
    head_stride: int,
    workers: int,
    duration_ns: int,
) -> Accesses:
    """The events of the attention kernel: of every head time passes, of every n-th events come."""
    tiles = np.array(
        [(number, end) for number, row in enumerate(rows) for end in _tile_ends(row)], np.int64
    ).reshape(-1, 2)
    blocks = -(-tiles[:, 1] // block_size)
    order, begin, most = _in_turn(K_AND_V * np.repeat(blocks, heads), workers)
    traced = order % heads % head_stride == 0
    item, begin = order[traced], begin[traced]
    count = K_AND_V * blocks[item // heads]
    item_of_row = np.repeat(np.arange(len(item)), count)
    place = np.arange(len(item_of_row)) - np.repeat(np.cumsum(count) - count, count)
    tile = item[item_of_row] // heads
    is_value, position = np.divmod(place, blocks[tile])
    number = tiles[tile, 0]
    first = np.cumsum([0, *(len(row.blocks) for row in rows)])
    table = np.concatenate([np.asarray(row.blocks, np.int64) for row in rows])
    events = np.zeros(len(item_of_row), kv_events.RECORD)
    events["kind"], events["row"], events["kv_head"] = (
        kv_events.K_READ + is_value,
        number,
        item[item_of_row] % heads,
    )
    events["block"], events["block_position"] = table[first[number] + position], position
    events["tokens"] = np.minimum(block_size, tiles[tile, 1] - position * block_size)
    _set_times(events, begin[item_of_row] + place, most, duration_ns)
    return Accesses(events, np.bincount(item[item_of_row] % workers, minlength=workers))


def _pieces(row: Row, block_size: int) -> list[tuple[int, int, int]]:
    """Block positions that a request writes to, with the first token and the end in each."""
    end = row.context + row.tokens
    positions = range(row.context // block_size, -(-end // block_size))
    return [
        (position, max(row.context, position * block_size), min(end, (position + 1) * block_size))
        for position in positions
    ]


def _tile_ends(row: Row) -> list[int]:
    """Tokens that the last query of each tile of a request's queries sees."""
    end = row.context + row.tokens
    return [min(begin + TILE_TOKENS, end) for begin in range(row.context, end, TILE_TOKENS)]


def _in_turn(work: Int64s, workers: int) -> tuple[Int64s, Int64s, int]:
    """Items, number i of `work[i]` accesses, dealt to workers in turn.

    Returns the items worker after worker, how many accesses the worker of each has done before it,
    and how many the busiest one does in all.
    """
    order = np.argsort(np.arange(len(work)) % workers, kind="stable")
    done = np.cumsum(work[order])
    worker = order % workers
    starts = np.searchsorted(worker, worker)  # the first item of each worker
    before = done - work[order]
    begin: Int64s = before - before[starts]
    return order, begin, int((begin + work[order]).max(initial=1))


def _set_times(events: flush.Column, begin: Int64s, most: int, duration_ns: int) -> None:
    """Start and duration of events, each one of `most` equal parts of the kernel's time."""
    start = begin * duration_ns // most
    events["start_ticks"] = start
    events["duration_ticks"] = (begin + 1) * duration_ns // most - start

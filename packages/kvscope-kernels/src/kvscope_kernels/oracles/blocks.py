"""Oracles of blocks: each is in the cache, belongs to one request, and keeps its place."""

import numpy as np

from kvscope.api.oracles import oracle
from kvscope_kernels.oracles.flush_counts import FlushCounts


def block_not_in_table(counts: FlushCounts) -> oracle.Violations:
    """Every event accesses the block that the request's block table has at that position."""
    flush = counts.flush
    table = np.append(flush.table_blocks, 0)
    lengths = np.array([*map(len, flush.block_table or ()), 0])  # the last of rows outside
    row = flush.row_or_last
    inside = (flush.block_position >= 0) & (flush.block_position < lengths[row])
    slot = (np.cumsum(lengths) - lengths)[row] + flush.block_position
    if not inside.all():
        slot[~inside] = 0

    def words(event: int) -> str:
        given = f"the table has {table[slot[event]]}" if inside[event] else "the table has none"
        return f"{counts.describe_event(event)}: block {flush.block[event]}, {given}"

    return oracle.violations(np.flatnonzero(~inside | (table[slot] != flush.block)), words)


def block_outside_cache(counts: FlushCounts) -> oracle.Violations:
    """Every block is in the cache, and no block is block 0, which the engine reserves.

    Blocks of block tables and events have numbers 1 … `engine.kv_blocks_total` of `run.json`.
    """
    flush, most = counts.flush, counts.run.blocks or 0
    given, events = flush.table_blocks, flush.block
    if all(not len(b) or (b.min() >= 1 and b.max() <= most) for b in (given, events)):
        return oracle.NONE
    bad = np.flatnonzero((events < 1) | (events > most))
    invalid = given[(given < 1) | (given > most)]
    words = f"a block table has block {invalid[0]}" if len(invalid) else ""
    if len(bad):
        words = f"{counts.describe_event(bad[0])}: block {events[bad[0]]}"
    return oracle.Violations(len(bad) + len(invalid), f"{words}; the cache has blocks 1 to {most}")


def block_owned_twice(counts: FlushCounts) -> oracle.Violations:
    """No block of a pass is in the block tables of two requests, or twice in one.

    Requests that found the block in the prefix cache share it with the request that computed it,
    at the same position. Imported runs, which may share blocks, are not checked.
    """
    flush, table = counts.flush, counts.flush.block_table or []
    if np.diff(np.sort(flush.table_blocks)).all():  # no block twice
        return oracle.NONE
    owner: dict[int, str] = {}
    clashes = [
        f"block {block} belongs to request {owner[block]} and to request {request}"
        for request, row in zip(flush.requests, table, strict=True)
        for positions in [counts.run.found_by(flush, request)]
        for position, block in enumerate(row)
        if positions.get(block) != position and owner.setdefault(block, request) != request
    ]
    twice = sum(len(row) - len(set(row)) for row in table)
    return oracle.violations(clashes, str) + oracle.Violations(
        twice, "a block table has a block twice"
    )


def hit_not_in_table(counts: FlushCounts) -> oracle.Violations:
    """A request has the blocks that it found in the prefix cache, each at its position."""
    flush, table = counts.flush, counts.flush.block_table or []
    wrong = [
        f"request {request} found block {block}, which is not at its block position {position}"
        for request, row in zip(flush.requests, table, strict=True)
        for block, position in counts.run.found_by(flush, request).items()
        if row[position : position + 1] != [block]
    ]
    return oracle.violations(wrong, str)


def blocks_moved(counts: FlushCounts) -> oracle.Violations:
    """A request has the same blocks in every layer, and keeps them until a preemption."""
    return oracle.violations(counts.moved or [], str)


def tokens_outside_block(counts: FlushCounts) -> oracle.Violations:
    """Every event covers at least one token, and no token beyond the end of its block."""
    flush = counts.flush
    offset, tokens = flush.offset_tokens, flush.tokens

    def words(event: int) -> str:
        span = f"tokens {offset[event]} + {tokens[event]} of a block of {flush.block_size}"
        return f"{counts.describe_event(event)}: {span}"

    outside = (offset < 0) | (tokens < 1) | (tokens > flush.block_size - offset)
    return oracle.violations(np.flatnonzero(outside), words)

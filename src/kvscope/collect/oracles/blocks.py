"""Oracles of blocks: they lie in the cache, belong to one request, and stay with it."""

import numpy as np

from kvscope.collect.oracles.flush_counts import FlushCounts
from kvscope.oracle import NONE, Violations, violations


def block_not_in_table(counts: FlushCounts) -> Violations:
    """Every event touches the block that the scheduler gave to the request at that position."""
    flush = counts.flush
    rows = [*(flush.block_table or []), []]  # the last for rows that the batch has not
    lengths = np.array([len(row) for row in rows], np.int64)
    table = np.array([block for row in rows for block in row] or [0], np.int64)
    row = flush.row_or_last
    inside = (flush.block_position >= 0) & (flush.block_position < lengths[row])
    slot = np.where(inside, (np.cumsum(lengths) - lengths)[row] + flush.block_position, 0)

    def words(event: int) -> str:
        given = f"the scheduler gave {table[slot[event]]}" if inside[event] else "it has none there"
        return f"{counts.describe_event(event)}: block {flush.block[event]}, {given}"

    return violations(np.flatnonzero(~inside | (table[slot] != flush.block)), words)


def block_outside_cache(counts: FlushCounts) -> Violations:
    """Every block lies within the cache; block 0 is the engine's own and no request's.

    Blocks have the numbers 1 … `engine.kv_blocks_total` of `run.json`, those that requests were
    given and those that events touch.
    """
    flush, most = counts.flush, counts.run.blocks or 0
    given = np.array([b for row in flush.block_table or [] for b in row], np.int64)
    events = flush.block
    if all(not len(b) or (b.min() >= 1 and b.max() <= most) for b in (given, events)):
        return NONE
    bad = np.flatnonzero((events < 1) | (events > most))
    strange = given[(given < 1) | (given > most)]
    words = f"a request was given block {strange[0]}" if len(strange) else ""
    if len(bad):
        words = f"{counts.describe_event(bad[0])}: block {events[bad[0]]}"
    return Violations(len(bad) + len(strange), f"{words}; the cache has blocks 1 to {most}")


def block_owned_twice(counts: FlushCounts) -> Violations:
    """No block is given to two requests of a pass, nor twice to one.

    kvscope's runs share none; of published engines, which may, nothing is said.
    """
    flush, table = counts.flush, counts.flush.block_table or []
    owner: dict[int, str] = {}
    clashes = [
        f"block {block} belongs to request {owner[block]} and to request {request}"
        for request, row in zip(flush.requests, table, strict=True)
        for block in row
        if owner.setdefault(block, request) != request
    ]
    count = sum(map(len, table)) - len(owner)
    if not count:
        return NONE
    return Violations(count, clashes[0] if clashes else "a request has a block at two positions")


def blocks_moved(counts: FlushCounts) -> Violations:
    """A request has the same blocks in every layer, and keeps them until it is preempted."""
    return violations(counts.moved or [], str)


def tokens_outside_block(counts: FlushCounts) -> Violations:
    """Every event is of one token or more of its block, and of none beyond the block's end."""
    flush = counts.flush
    offset, tokens = flush.offset_tokens, flush.tokens

    def words(event: int) -> str:
        found = f"tokens {offset[event]} + {tokens[event]} of a block of {flush.block_size}"
        return f"{counts.describe_event(event)}: {found}"

    outside = (offset < 0) | (tokens < 1) | (offset + tokens > flush.block_size)
    return violations(np.flatnonzero(outside), words)

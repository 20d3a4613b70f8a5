"""Oracles of blocks: they lie in the cache, belong to one request, and stay with it."""

import numpy as np

from kvscope.collect.oracles.flush_counts import Evidence
from kvscope.oracle import NONE, Oracle, Violations


def block_not_in_table(evidence: Evidence) -> Violations | None:
    """Every event touches the block that the scheduler gave to the request at that position."""
    flush = evidence.flush
    if flush.block_table is None:
        return None
    rows = [*flush.block_table, []]  # the last for rows that the batch has not
    lengths = np.array([len(row) for row in rows], np.int64)
    table = np.array([block for row in rows for block in row] or [0], np.int64)
    row = flush.row_or_none
    inside = (flush.block_position >= 0) & (flush.block_position < lengths[row])
    slot = np.where(inside, (np.cumsum(lengths) - lengths)[row] + flush.block_position, 0)
    bad = np.flatnonzero(~inside | (table[slot] != flush.block))
    if not len(bad):
        return NONE
    first = bad[0]
    given = f"the scheduler gave {table[slot[first]]}" if inside[first] else "it has none there"
    words = f"{evidence.event_words(first)}: block {flush.block[first]}, {given}"
    return Violations(len(bad), words)


def block_outside_cache(evidence: Evidence) -> Violations | None:
    """Every block lies within the cache; block 0 is the engine's own and no request's."""
    flush, most = evidence.flush, evidence.known.blocks
    if most is None:
        return None
    given = np.array([b for row in flush.block_table or [] for b in row], np.int64)
    events = flush.block
    if all(not len(b) or (b.min() >= 1 and b.max() <= most) for b in (given, events)):
        return NONE
    bad = np.flatnonzero((events < 1) | (events > most))
    strange = given[(given < 1) | (given > most)]
    words = f"a request was given block {strange[0]}" if len(strange) else ""
    if len(bad):
        words = f"{evidence.event_words(bad[0])}: block {events[bad[0]]}"
    return Violations(len(bad) + len(strange), f"{words}; the cache has blocks 1 to {most}")


def block_owned_twice(evidence: Evidence) -> Violations | None:
    """No block is given to two requests of a pass, nor twice to one."""
    flush = evidence.flush
    if flush.block_table is None or flush.kv_heads is None:
        return None  # published engines may share a prefix's blocks
    owner: dict[int, str] = {}
    clashes = [
        f"block {block} belongs to request {owner[block]} and to request {request}"
        for request, row in zip(flush.requests, flush.block_table, strict=True)
        for block in row
        if owner.setdefault(block, request) != request
    ]
    count = sum(map(len, flush.block_table)) - len(owner)
    if not count:
        return NONE
    return Violations(count, clashes[0] if clashes else "a request has a block at two positions")


def blocks_moved(evidence: Evidence) -> Violations | None:
    """A request has the same blocks in every layer, and keeps them until it is preempted."""
    moved = evidence.moved
    if moved is None:
        return None
    return Violations(len(moved), moved[0]) if moved else NONE


def tokens_outside_block(evidence: Evidence) -> Violations | None:
    """Every event is of one token or more of its block, and of none beyond the block's end."""
    flush = evidence.flush
    offset, tokens = flush.offset_tokens, flush.tokens
    bad = np.flatnonzero((offset < 0) | (tokens < 1) | (offset + tokens > flush.block_size))
    if not len(bad):
        return NONE
    first = bad[0]
    found = f"tokens {offset[first]} + {tokens[first]} of a block of {flush.block_size}"
    return Violations(len(bad), f"{evidence.event_words(first)}: {found}")


ORACLES_OF_BLOCKS: tuple[Oracle[Evidence], ...] = tuple(
    Oracle(look, "KV events")
    for look in (
        block_not_in_table,
        block_outside_cache,
        block_owned_twice,
        blocks_moved,
        tokens_outside_block,
    )
)

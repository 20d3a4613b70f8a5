"""The accesses that a batch demands, derived from the lengths of its requests.

A request's scheduled tokens are computed as queries, in tiles of up to `tile_tokens`; a tile that
ends with the request's token number e reads every block that begins before e, K and V, for every
traced head. Each scheduled token is written once, K and V, all heads together.
"""

from functools import cached_property

import numpy as np

from kvscope_kernels import kv_events
from kvscope_kernels.arraytypes import Bools, Int64s
from kvscope_kernels.collect.flushes import Flush


class Demand:
    """The reads that the batch of a flush demands, by *slot*: a (row, block position) in use.

    Slots are numbered by row, then position; `first_slot[row]` is the first slot of a row, and
    `slots` the number of slots.
    """

    def __init__(self, flush: Flush) -> None:
        self.flush = flush
        self.block_size = flush.block_size
        self.tile = flush.tile_tokens
        self.context = flush.context
        self.scheduled = flush.scheduled
        self.end = self.context + self.scheduled  # the request's tokens after the pass
        self.tiles = -(-self.scheduled // self.tile)
        self.blocks = -(-self.end // self.block_size)
        self.first_slot = np.cumsum(self.blocks) - self.blocks
        self.slots = int(self.blocks.sum())

    @cached_property
    def row(self) -> Int64s:
        """The row of each slot."""
        return np.repeat(np.arange(len(self.blocks)), self.blocks)

    @cached_property
    def position(self) -> Int64s:
        """The block position of each slot."""
        position: Int64s = np.arange(self.slots) - self.first_slot[self.row]
        return position

    def tiles_beyond(self, row: Int64s, token: Int64s) -> Int64s:
        """The number of tiles of each row that end after `token` tokens of the request."""
        done = np.maximum((token - self.context[row]) // self.tile, 0)
        beyond: Int64s = np.where(token < self.end[row], self.tiles[row] - done, 0)
        return beyond

    @cached_property
    def reads(self) -> Int64s:
        """Reads of each slot a head, for K and for V: one for each tile that reaches the slot."""
        return self.tiles_beyond(self.row, self.position * self.block_size)

    @cached_property
    def tokens_read(self) -> Int64s:
        """The tokens of those reads, summed: a tile reads a block's tokens up to its own end.

        Of tiles a … b-1 that end within the block, tile t ends after context + (t + 1) · tile
        tokens, but a request's last one at the request's end.
        """
        row, begin = self.row, self.position * self.block_size
        tiles = self.tiles[row]
        whole = self.tiles_beyond(row, begin + self.block_size - 1)
        a, b = tiles - self.reads, tiles - whole
        within = (b - a) * (self.context[row] - begin) + self.tile * (
            b * (b + 1) - a * (a + 1)
        ) // 2
        last_is_within = (b == tiles) & (b > a)
        shorter_by = self.context[row] + tiles * self.tile - self.end[row]
        tokens: Int64s = whole * self.block_size + within - np.where(last_is_within, shorter_by, 0)
        return tokens

    def ends_a_tile(self, row: Int64s, token: Int64s) -> Bools:
        """True for tokens of the request at which a tile of the row ends."""
        into = token - self.context[row]
        inner = (into > 0) & (token < self.end[row]) & (into % self.tile == 0)
        ends: Bools = inner | (token == self.end[row])
        return ends

    @cached_property
    def blocks_written(self) -> int:
        """Blocks that the scheduled tokens fall into, over all rows."""
        written = self.blocks - self.context // self.block_size
        return int(written[self.scheduled > 0].sum())

    def events(self, kernel: str) -> int:
        """Number of events that a kernel should record.

        A write is an event a block, or an event a token if that is how the kernel writes: its
        events then have one token each, and are as many as tokens scheduled only if none is
        missing.
        """
        flush = self.flush
        heads = 1 if flush.kv_heads is None else len(flush.kv_heads)
        if kernel == kv_events.ATTENTION:
            return 2 * heads * int(self.reads.sum())
        writes = flush.tokens[flush.kind > kv_events.V_READ]
        by_token = len(writes) and bool((writes == 1).all())
        return 2 * int(flush.scheduled.sum()) if by_token else 2 * self.blocks_written

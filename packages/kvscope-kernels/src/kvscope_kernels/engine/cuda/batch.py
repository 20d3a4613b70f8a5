"""The work of the CUDA kernels in one forward pass, computed on the host once for all layers.

The counts are exact, so the place of each program's events is known before the launch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MAX_SPLITS = 32  # parts of a sequence that `reduce` joins
PROGRAMS_PER_SM = 4  # that keep a GPU's memory busy; more splits do not help
LEAST_SHARE = 4  # blocks of a sequence that are worth a program

Table = NDArray[np.int64]


@dataclass(frozen=True)
class Tiles:
    """Tiles of consecutive queries, of requests of one kind: one launch of `attend`."""

    rows: Table  # (tiles, 4) row, first query in the batch, queries, tokens of the request before
    block_size: int
    kv_heads: int
    tile_tokens: int  # most queries of a tile
    splits: int  # parts that each sequence is read in, by a program each
    split: bool  # whether the parts' results are joined by `reduce`

    @property
    def shares(self) -> Table:
        """Blocks that one program of each tile reads at most."""
        blocks = -(-(self.rows[:, 2] + self.rows[:, 3]) // self.block_size)
        return np.asarray(-(-blocks // self.splits))

    def segments(self, head_stride: int) -> int:
        """Segments of the launch: programs of recorded KV heads."""
        return len(self.rows) * -(-self.kv_heads // head_stride) * self.splits

    def events(self, head_stride: int) -> int:
        """Room for events that the launch needs: a share of K and of V reads in each segment."""
        return int(2 * self.shares.sum()) * self.splits * -(-self.kv_heads // head_stride)

    def places(self, head_stride: int) -> Table:
        """(tiles,) where the room of each tile begins in the launch's."""
        of_tile = 2 * self.shares * self.splits * -(-self.kv_heads // head_stride)
        return np.asarray(np.cumsum(of_tile) - of_tile)


@dataclass(frozen=True)
class CudaBatch:
    """The batch of one forward pass, as the GPU's kernels take it."""

    pieces: (
        Table  # (pieces, 4) row, first token in the batch, tokens, the block's place in the request
    )
    decode: Tiles  # requests with one query
    prefill: Tiles  # requests with more


def choose_splits(tiles: int, kv_heads: int, most_blocks: int, processors: int) -> int:
    """Parts to read each sequence in, so that the GPU's processors all have work."""
    wanted = -(-processors * PROGRAMS_PER_SM // (tiles * kv_heads))
    return max(1, min(wanted, MAX_SPLITS, most_blocks // LEAST_SHARE))


def cut_batch(
    query_starts: Sequence[int] | NDArray[np.integer],
    lengths: Sequence[int] | NDArray[np.integer],
    block_size: int,
    kv_heads: int,
    tile: int,
    processors: int,
) -> CudaBatch:
    """The work of a batch: `query_starts` (requests + 1,), `lengths` tokens with the new ones;
    tiles have up to `tile` queries, and the GPU so many streaming multiprocessors."""
    starts = np.asarray(query_starts, dtype=np.int64)
    after = np.asarray(lengths, dtype=np.int64)
    queries = np.diff(starts)
    before = after - queries
    rows = np.arange(len(queries))
    alone = queries == 1

    single = np.stack((rows, starts[:-1], queries, before), axis=1)[alone]
    most_blocks = int(-(-after[alone].max(initial=0) // block_size))
    splits = choose_splits(len(single), kv_heads, most_blocks, processors) if len(single) else 1

    several = queries > 1
    row, first, tokens = _cut(queries * several, np.full(len(queries), tile), 0)
    many = np.stack((row, starts[row] + first, tokens, before[row] + first), axis=1)
    return CudaBatch(
        _pieces(starts, before, queries, block_size),
        Tiles(single, block_size, kv_heads, 1, splits, split=splits > 1),
        Tiles(many, block_size, kv_heads, tile, splits=1, split=False),
    )


def _pieces(starts: Table, before: Table, queries: Table, block_size: int) -> Table:
    """The batch's tokens, cut where a request's blocks begin."""
    row, first, tokens = _cut(queries, np.full(len(queries), block_size), before % block_size)
    position = (before[row] + first) // block_size
    return np.stack((row, starts[row] + first, tokens, position), axis=1)


def _cut(counts: Table, sizes: Table, taken: Table | int) -> tuple[Table, Table, Table]:
    """Cut each count into pieces of its size, of the first of which some is taken already.

    Returns for every piece: whose it is, where it begins in the count, and how much it holds.
    """
    taken = np.broadcast_to(taken, counts.shape)
    pieces = np.where(counts > 0, -(-(counts + taken) // sizes), 0)
    whose = np.repeat(np.arange(len(counts)), pieces)
    nth = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    begin = np.maximum(nth * sizes[whose] - taken[whose], 0)
    end = np.minimum((nth + 1) * sizes[whose] - taken[whose], counts[whose])
    return whose, begin, end - begin

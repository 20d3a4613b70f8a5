"""Divides a batch into the work of the CPU kernels: pieces to write, tiles to read."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

Ints = npt.NDArray[np.int64]

# Rows (queries × attention heads of a KV head) of a tile: enough for BLAS, few enough for a cache.
ROWS = 128
SCRATCH_WORDS = 1 << 22  # of scores, a thread


def tile_tokens(group: int, max_tokens: int) -> int:
    """Queries of a tile, where `group` attention heads share a KV head."""
    rows = min(ROWS, SCRATCH_WORDS // max_tokens)
    return max(1, rows // group)


@dataclass(frozen=True)
class CpuBatch:
    """One forward pass as the kernels see it.

    `pieces` (n, 6): row, first token of the batch, tokens, block, the block's position in the
    request, first slot in the block; a piece is what a request writes into one block.
    `tiles` (n, 4): row, first query of the batch, queries, tokens of the request before them.
    `reads` is the number of blocks that one KV head reads, over all tiles.
    """

    pieces: Ints
    tiles: Ints
    table: npt.NDArray[np.int32]
    reads: int


def cut_batch(starts: Any, lengths: Any, table: Any, block_size: int, tile: int) -> CpuBatch:
    """Cut up a batch: `starts` (rows + 1) of each row's queries, `lengths` (rows) of its context
    after the pass, `table` (rows, blocks) of its blocks."""
    pieces, tiles, reads = _cut(starts, lengths, table, block_size, tile)
    return CpuBatch(pieces, tiles, table, reads)


@njit(cache=True)
def _cut(starts, lengths, table, block_size, tile):
    count_pieces = count_tiles = reads = 0
    for row in range(lengths.shape[0]):
        queries = starts[row + 1] - starts[row]
        first = lengths[row] - queries
        if queries > 0:
            count_pieces += (lengths[row] - 1) // block_size - first // block_size + 1
            count_tiles += (queries + tile - 1) // tile
    pieces = np.empty((count_pieces, 6), np.int64)
    tiles = np.empty((count_tiles, 4), np.int64)
    p = t = 0
    for row in range(lengths.shape[0]):
        start, queries = starts[row], starts[row + 1] - starts[row]
        first = lengths[row] - queries
        done = 0
        while done < queries:
            position, offset = (first + done) // block_size, (first + done) % block_size
            count = min(block_size - offset, queries - done)
            pieces[p, 0], pieces[p, 1], pieces[p, 2] = row, start + done, count
            pieces[p, 3], pieces[p, 4], pieces[p, 5] = table[row, position], position, offset
            p, done = p + 1, done + count
        for done in range(0, queries, tile):
            count = min(tile, queries - done)
            tiles[t, 0], tiles[t, 1], tiles[t, 2] = row, start + done, count
            tiles[t, 3] = first + done
            t += 1
            reads += (first + done + count + block_size - 1) // block_size
    return pieces, tiles, reads

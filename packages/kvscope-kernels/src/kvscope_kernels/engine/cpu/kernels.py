"""The CPU kernels: `write` puts K and V into their blocks, `attend` reads the blocks.

Both are compiled with tracing and without: where `events` is None, Numba leaves out what it does
not need. Which events they write is said in docs/KV_EVENTS.md.

The cache of a layer is a flat array; `strides` are its elements from block to block and from head
to head. One head of one block holds `block_size` rows of K, then as many of V. Its elements are
float32, or the bits of bfloat16 as uint16: NumPy and Numba have no bfloat16.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import get_thread_id, njit, prange, types
from numba.extending import intrinsic

from kvscope_kernels.engine.cpu.buffer import DROPPED, USED
from kvscope_kernels.engine.cpu.clock import ticks
from kvscope_kernels.kv_events import K_READ, K_WRITE, LONGEST_TICKS, RECORD_ALL_HEADS, V_READ

# Sums may be taken in any order, but infinities stay what they are.
FAST = {"reassoc", "contract", "nsz", "arcp"}
# A tile of no more rows than this reads blocks in place; a larger one copies each first, for BLAS.
FEW_ROWS = 8

# e^x for |x| <= ln(2)/2: the polynomial of Cephes' expf.
TERMS = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)
E0, E1, E2, E3, E4, E5 = map(np.float32, TERMS)
LOG2_E = np.float32(1.44269504)
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
LEAST = np.float32(-87.0)  # e to less is no normal float32


@intrinsic
def as_float(typingctx: Any, bits: Any) -> Any:
    """The float32 of these 32 bits."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), code


@intrinsic
def to_float32(typingctx: Any, element: Any) -> Any:
    """An element of the cache as float32: itself, or the bfloat16 of these 16 bits."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if element == types.float32:
            return arguments[0]
        word = ir.IntType(32)
        bits = builder.shl(builder.zext(arguments[0], word), word(16))
        return builder.bitcast(bits, ir.FloatType())

    return types.float32(element), code


@njit(inline="always", cache=True)
def log(events, counters, layer, kind, row, kv_head, block, position, offset, tokens, start):
    """Write one event to the thread's segment, or count it where the segment is full."""
    duration = min(ticks() - start, np.uint64(LONGEST_TICKS))
    thread = get_thread_id()
    place = counters[thread, USED]
    if place < events.shape[1]:
        events[thread, place, 0] = (
            np.uint64(kind)
            | np.uint64(layer) << np.uint64(16)
            | np.uint64(row) << np.uint64(32)
            | np.uint64(kv_head) << np.uint64(48)
        )
        events[thread, place, 1] = np.uint64(block) | np.uint64(position) << np.uint64(32)
        events[thread, place, 2] = (
            np.uint64(offset) | np.uint64(tokens) << np.uint64(16) | duration << np.uint64(32)
        )
        events[thread, place, 3] = start
        counters[thread, USED] = place + 1
    else:
        counters[thread, DROPPED] += 1


@njit(parallel=True, nogil=True, fastmath=FAST, cache=True)
def write(key, value, kv, strides, block_size, pieces, events, counters, layer):
    """Write the pieces (`batch.CpuBatch`) of key and value, (tokens, KV heads, head size)."""
    heads, size = key.shape[1], key.shape[2]
    for p in prange(pieces.shape[0]):
        row, token, count = pieces[p, 0], pieces[p, 1], pieces[p, 2]
        block, position, offset = pieces[p, 3], pieces[p, 4], pieces[p, 5]
        for is_value in range(2):
            start = np.uint64(0)
            if events is not None:
                start = ticks()
            source = value if is_value else key
            for h in range(heads):
                base = block * strides[0] + h * strides[1]
                base += (is_value * block_size + offset) * size
                for t in range(count):
                    into, new = kv[base + t * size : base + (t + 1) * size], source[token + t, h]
                    for d in range(size):
                        into[d] = new[d]
            if events is not None:
                log(
                    events, counters, layer, K_WRITE + is_value, row, RECORD_ALL_HEADS, block,
                    position, offset, count, start,
                )  # fmt: skip


@njit(parallel=True, nogil=True, fastmath=FAST, cache=True)
def attend(
    query, kv, out, strides, block_size, kv_heads, tiles, table, scale, scratch,
    events, counters, layer, head_stride,
):  # fmt: skip
    """Attend: query and out (tokens, attention heads, head size) float32; table (rows, blocks).

    A work item is a tile (`batch.CpuBatch`) and a KV head with the attention heads that share it:
    scores of all blocks from K, their softmax, then the sum of V. `scratch` has a row a thread.
    """
    group, size = query.shape[1] // kv_heads, query.shape[2]
    for item in prange(tiles.shape[0] * kv_heads):
        # Head by head, so that threads get like shares however long the requests are.
        h, tile = item // tiles.shape[0], item % tiles.shape[0]
        row, query_0 = tiles[tile, 0], tiles[tile, 1]
        queries, first = tiles[tile, 2], tiles[tile, 3]
        end = first + queries  # tokens that the tile's last query sees
        rows, blocks = queries * group, (end + block_size - 1) // block_size
        rest = scratch[get_thread_id()]
        copy, rest = rest[: block_size * size], rest[block_size * size :]
        q, rest = rest[: rows * size].reshape(rows, size), rest[rows * size :]
        o, rest = rest[: rows * size].reshape(rows, size), rest[rows * size :]
        product, rest = rest[: rows * size].reshape(rows, size), rest[rows * size :]
        scores = rest[: blocks * rows * block_size].reshape(blocks, rows, block_size)
        for r in range(rows):
            for d in range(size):
                q[r, d] = query[query_0 + r // group, h * group + r % group, d] * scale
                o[r, d] = np.float32(0)
        traced = False
        if events is not None:
            traced = h % head_stride == 0
        for b in range(blocks):
            start = np.uint64(0)
            if events is not None and traced:
                start = ticks()
            block, tokens = table[row, b], min(block_size, end - b * block_size)
            base = block * strides[0] + h * strides[1]
            multiply_keys(q, kv, base, tokens, scores[b], copy)
            if events is not None and traced:
                log(events, counters, layer, K_READ, row, h, block, b, 0, tokens, start)
        softmax(scores, group, first)
        for b in range(blocks):
            start = np.uint64(0)
            if events is not None and traced:
                start = ticks()
            block, tokens = table[row, b], min(block_size, end - b * block_size)
            base = block * strides[0] + h * strides[1] + block_size * size
            add_values(scores[b], kv, base, tokens, o, copy, product)
            if events is not None and traced:
                log(events, counters, layer, V_READ, row, h, block, b, 0, tokens, start)
        for r in range(rows):
            for d in range(size):
                out[query_0 + r // group, h * group + r % group, d] = o[r, d]


def scratch_words(block_size: int, head_size: int, rows: int, tokens: int) -> int:
    """float32 that one thread of `attend` needs, for tiles of `rows` rows that see `tokens`."""
    padded = -(-tokens // block_size) * block_size
    return block_size * head_size + 3 * rows * head_size + rows * padded


# --- arithmetic on one block, inlined into `attend`


@njit(inline="always", cache=True)
def multiply_keys(q, kv, base, tokens, scores, copy):
    """scores[r, n] = q[r] · K[n] for a block's tokens; q (rows, size), scores (rows, tokens)."""
    rows, size = q.shape
    if rows <= FEW_ROWS:
        for r in range(rows):
            x, y = q[r], scores[r]
            for n in range(tokens):
                k = kv[base + n * size : base + (n + 1) * size]
                total = np.float32(0)
                for d in range(size):
                    total += x[d] * to_float32(k[d])
                y[n] = total
    else:
        np.dot(q, copy_block(kv, base, tokens, copy, size).T, scores)


@njit(inline="always", cache=True)
def add_values(scores, kv, base, tokens, out, copy, product):
    """out[r] += Σ scores[r, n] · V[n] over a block's tokens; out and product (rows, size)."""
    rows, size = out.shape
    if rows <= FEW_ROWS:
        whole = tokens - tokens % 4
        for r in range(rows):
            w, z = scores[r], out[r]
            for n in range(0, whole, 4):
                offset = base + n * size
                v0, v1 = kv[offset : offset + size], kv[offset + size : offset + 2 * size]
                v2, v3 = (
                    kv[offset + 2 * size : offset + 3 * size],
                    kv[offset + 3 * size : offset + 4 * size],
                )
                w0, w1, w2, w3 = w[n], w[n + 1], w[n + 2], w[n + 3]
                for d in range(size):
                    half = w0 * to_float32(v0[d]) + w1 * to_float32(v1[d])
                    z[d] += half + w2 * to_float32(v2[d]) + w3 * to_float32(v3[d])
            for n in range(whole, tokens):
                v = kv[base + n * size : base + (n + 1) * size]
                for d in range(size):
                    z[d] += w[n] * to_float32(v[d])
    else:
        np.dot(scores, copy_block(kv, base, tokens, copy, size), product)
        for r in range(rows):
            for d in range(size):
                out[r, d] += product[r, d]


@njit(inline="always", cache=True)
def copy_block(kv, base, tokens, copy, size):
    """A block's rows of K or V as float32; rows without a token are 0, whatever the cache has."""
    for i in range(tokens * size):
        copy[i] = to_float32(kv[base + i])
    for i in range(tokens * size, copy.size):
        copy[i] = np.float32(0)
    return copy.reshape(copy.size // size, size)


@njit(inline="always", cache=True)
def softmax(scores, group, first):
    """Softmax of each row over the tokens that its query sees; the others get 0.

    scores (blocks, rows, block size); row r belongs to query r // group, which sees the `first`
    tokens before the tile, and those of the tile up to itself.
    """
    blocks, rows, block_size = scores.shape
    for r in range(rows):
        seen = first + r // group + 1
        top = np.float32(-np.inf)
        for b in range(blocks):
            here = min(block_size, seen - b * block_size)
            if here > 0:
                top = max(top, maximum(scores[b, r], here))
        total = np.float32(0)
        for b in range(blocks):
            s = scores[b, r]
            here = max(0, min(block_size, seen - b * block_size))
            for n in range(here):
                s[n] = exp(s[n] - top)
            for n in range(here, block_size):
                s[n] = np.float32(0)
            total += total_of(s, here)
        share = np.float32(1) / total
        for b in range(blocks):
            s = scores[b, r]
            for n in range(block_size):
                s[n] *= share


# Loops over one array with one result become vectors; the same loops written into others do not.


@njit(inline="always", cache=True)
def maximum(x, count):
    """The largest of x[:count], count > 0."""
    top = x[0]
    for n in range(1, count):
        top = x[n] if x[n] > top else top
    return top


@njit(inline="always", cache=True)
def total_of(x, count):
    """The sum of x[:count]."""
    total = np.float32(0)
    for n in range(count):
        total += x[n]
    return total


@njit(inline="always", cache=True)
def exp(x):
    """e^x for x <= 0, to float32's precision."""
    x = max(x, LEAST)
    n = np.floor(x * LOG2_E + np.float32(0.5))
    x = x - n * LN2_HIGH - n * LN2_LOW
    y = ((((E0 * x + E1) * x + E2) * x + E3) * x + E4) * x + E5
    y = y * x * x + x + np.float32(1)
    return y * as_float(np.uint32((np.int32(n) + np.int32(127)) << np.int32(23)))

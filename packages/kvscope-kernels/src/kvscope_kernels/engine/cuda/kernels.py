"""Attention over a paged KV cache in Triton, with KV events recorded inside the kernels.

Three kernels: `write` puts new tokens' K and V into their blocks, `attend` reads them, and `reduce`
joins what `attend` made of the parts of one sequence. A program is one thread block (CTA); with
INSTRUMENT it records each access to a block in its own segment (`cuda.instrument`). The arithmetic
and its order are the same with and without recording.
"""

import triton
import triton.language as tl

from kvscope_kernels import kv_events as events
from kvscope_kernels.engine.cuda.buffer import HEADER_WORDS
from kvscope_kernels.engine.cuda.instrument import (
    await_data,
    close_segment,
    open_segment,
    order_after,
    put_event,
    read_clock,
)

_HEADER = tl.constexpr(HEADER_WORDS)
_ALL_HEADS = tl.constexpr(events.RECORD_ALL_HEADS)
_K_READ, _V_READ = tl.constexpr(events.K_READ), tl.constexpr(events.V_READ)
_K_WRITE = tl.constexpr(events.K_WRITE)  # V's is the next


@triton.jit(do_not_specialize=["layer", "first_event", "first_segment", "event_limit"])
def kvscope_write(
    key,  # (tokens, KV heads, head size)
    value,
    cache,  # (blocks, KV heads, block size, 2 · head size), K first; the first three in any order
    slots,  # (tokens,) block · block size + place in the block; negative: leave out
    pieces,  # (programs, 4) row, first token of the batch, tokens, the block's place in the request
    key_token: tl.int64,  # strides, in elements
    key_head: tl.int64,
    value_token: tl.int64,
    value_head: tl.int64,
    cache_block: tl.int64,
    cache_head: tl.int64,
    cache_slot: tl.int64,
    events,
    headers,
    counter,
    layer: tl.int64,
    first_event: tl.int64,  # of this launch, in `events`
    first_segment: tl.int64,
    event_limit: tl.int64,  # events that the buffer holds
    KV_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TOKENS: tl.constexpr,  # most tokens of a piece, a power of two
    CHUNK: tl.constexpr,  # elements of a token that are moved at once, a power of two
    INSTRUMENT: tl.constexpr,
    CLOCK: tl.constexpr,
):
    """One program: the new tokens of one request that go to one block; all heads, K then V."""
    piece = tl.program_id(0)
    row = tl.load(pieces + piece * 4)
    first = tl.load(pieces + piece * 4 + 1)
    tokens = tl.load(pieces + piece * 4 + 2)
    position = tl.load(pieces + piece * 4 + 3)
    slot = tl.load(slots + first).to(tl.int64)
    tokens = tl.where(slot < 0, 0, tokens)
    slot = tl.maximum(slot, 0)
    block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    token = tl.arange(0, TOKENS)

    if INSTRUMENT:
        header = headers + (first_segment + piece) * _HEADER
        place = first_event + piece * 2
        open_segment(header, counter, place, CLOCK)
        end = tl.minimum(place + tl.where(tokens > 0, 2, 0), event_limit)
        word0 = (layer << 16) | (row << 32) | (tl.full((), _ALL_HEADS, tl.int64) << 48)

    for kind in tl.static_range(2):
        into = block
        if INSTRUMENT:
            start = read_clock(counter, CLOCK)
            into = order_after(block, start)
        for begin in range(0, KV_HEADS * HEAD_SIZE, CHUNK):
            element = begin + tl.arange(0, CHUNK)
            head, at = element // HEAD_SIZE, element % HEAD_SIZE
            mask = (token < tokens)[:, None] & (element < KV_HEADS * HEAD_SIZE)[None, :]
            if kind == 0:
                source = key + (first + token)[:, None] * key_token + head[None, :] * key_head
            else:
                source = value + (first + token)[:, None] * value_token + head[None, :] * value_head
            target = cache + into * cache_block + kind * HEAD_SIZE
            target += (offset + token)[:, None] * cache_slot + head[None, :] * cache_head
            moved = tl.load(source + at[None, :], mask=mask)
            tl.store(target + at[None, :], moved, mask=mask)
        if INSTRUMENT:
            tl.debug_barrier()
            stop = read_clock(counter, CLOCK)
            word = word0 | (_K_WRITE + kind)
            put_event(events, place + kind, end, word, block, position, offset, tokens, start, stop)

    if INSTRUMENT:
        made = tl.where(tokens > 0, 2, 0).to(tl.int64)
        close_segment(header, counter, made, event_limit - place, CLOCK)


@triton.jit(do_not_specialize=["splits", "layer", "first_event", "first_segment", "event_limit"])
def kvscope_attention(
    query,  # (tokens, heads, head size)
    cache,  # as in `write`
    output,  # as query
    partial,  # (tiles, heads, splits, head size) float32, and, if SPLIT, what `reduce` needs:
    partial_max,  # (tiles, heads, splits)
    partial_sum,
    tiles,  # (tiles, 4) row, first query in the batch, queries, tokens of the request before them
    kv_heads,  # of this launch
    table,  # (rows, …) the requests' blocks
    scale_log2,  # of scores, times log2(e)
    query_token: tl.int64,  # strides, in elements
    query_head: tl.int64,
    output_token: tl.int64,
    output_head: tl.int64,
    cache_block: tl.int64,
    cache_head: tl.int64,
    cache_slot: tl.int64,
    table_row: tl.int64,
    splits,  # parts of the sequence, each with its program
    starts,  # (tiles,) where a tile's events begin, from `first_event` on
    events,
    headers,
    counter,
    layer: tl.int64,
    first_event: tl.int64,
    first_segment: tl.int64,
    event_limit: tl.int64,
    KV_HEADS: tl.constexpr,  # in all
    GROUP: tl.constexpr,  # query heads of a KV head
    TILE: tl.constexpr,  # most queries of a tile
    ROWS: tl.constexpr,  # a power of two, at least 16 and TILE · GROUP
    HEAD_SIZE: tl.constexpr,
    WIDTH: tl.constexpr,  # a power of two, at least 16 and HEAD_SIZE
    BLOCK_SIZE: tl.constexpr,
    SLOTS: tl.constexpr,  # a power of two, at least 16 and BLOCK_SIZE
    SPLIT: tl.constexpr,
    INSTRUMENT: tl.constexpr,
    CLOCK: tl.constexpr,
):
    """One program: a tile of consecutive queries of one request, the query heads of one KV head,
    and one part of the blocks up to the tile's last query: K, then V, block after block."""
    tile, split = tl.program_id(0), tl.program_id(2)
    kv_head = tl.load(kv_heads + tl.program_id(1)).to(tl.int32)
    row = tl.load(tiles + tile * 4)
    first = tl.load(tiles + tile * 4 + 1)
    queries = tl.load(tiles + tile * 4 + 2).to(tl.int32)
    length = tl.load(tiles + tile * 4 + 3).to(tl.int32) + queries
    blocks = tl.cdiv(length, BLOCK_SIZE)
    share = tl.cdiv(blocks, splits)
    begin = split * share
    end = tl.minimum(begin + share, blocks)

    if INSTRUMENT:
        lane = tl.program_id(1) * splits + split
        segment = tile * tl.num_programs(1) * splits + lane
        header = headers + (first_segment + segment) * _HEADER
        place = first_event + tl.load(starts + tile) + lane.to(tl.int64) * share * 2
        open_segment(header, counter, place, CLOCK)
        room = event_limit - place
        event_end = tl.minimum(place + share * 2, event_limit)
        word0 = (layer << 16) | (row << 32) | (kv_head.to(tl.int64) << 48)

    member = tl.arange(0, ROWS)
    nth, head = member // GROUP, kv_head * GROUP + member % GROUP
    at = tl.arange(0, WIDTH)
    slot = tl.arange(0, SLOTS)
    real = (nth < queries)[:, None] & (at < HEAD_SIZE)[None, :]
    token = first + nth
    q = tl.load(
        query + token[:, None] * query_token + head[:, None] * query_head + at[None, :],
        mask=real,
        other=0.0,
    )
    # Rows past the tile's queries attend as its last query does, and are not stored.
    reach = length - queries + tl.minimum(nth, queries - 1)
    inside = slot[:, None] * cache_slot + at[None, :]
    lanes = cache + kv_head.to(tl.int64) * cache_head

    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, WIDTH), tl.float32)
    for position in range(begin, end):
        block = tl.load(table + row * table_row + position).to(tl.int64)
        tokens = tl.minimum(length - position * BLOCK_SIZE, BLOCK_SIZE)
        held = (slot < tokens)[:, None] & (at < HEAD_SIZE)[None, :]

        source = block
        if INSTRUMENT:
            start = read_clock(counter, CLOCK)
            source = order_after(block, start)
        k = tl.load(lanes + source * cache_block + inside, mask=held, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        if INSTRUMENT:
            scores = await_data(scores, CLOCK)
            stop = read_clock(counter, CLOCK)
            index, count = (row * 0 + position).to(tl.int64), tokens.to(tl.int64)
            word = word0 | _K_READ
            put_event(events, place, event_end, word, block, index, 0, count, start, stop)

        key = position * BLOCK_SIZE + slot
        seen = (slot < tokens)[None, :] & (key[None, :] <= reach[:, None])
        scores = tl.where(seen, scores * scale_log2, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        fade = tl.exp2(top - higher)
        total = total * fade + tl.sum(weights, 1)
        mixed *= fade[:, None]
        top = higher

        if INSTRUMENT:
            start = read_clock(counter, CLOCK)
            source = order_after(block, start)
        v = tl.load(lanes + HEAD_SIZE + source * cache_block + inside, mask=held, other=0.0)
        mixed = tl.dot(weights.to(v.dtype), v, acc=mixed, input_precision="ieee")
        if INSTRUMENT:
            mixed = await_data(mixed, CLOCK)
            stop = read_clock(counter, CLOCK)
            word = word0 | _V_READ
            put_event(events, place + 1, event_end, word, block, index, 0, count, start, stop)
            place += 2

    if SPLIT:  # tiles of one query
        part = (tile * KV_HEADS * GROUP + head).to(tl.int64) * splits + split
        alone = member < GROUP
        tl.store(partial + part[:, None] * HEAD_SIZE + at[None, :], mixed, mask=real)
        tl.store(partial_max + part, top, mask=alone)
        tl.store(partial_sum + part, total, mask=alone)
    else:
        result = mixed / total[:, None]
        to = token[:, None] * output_token + head[:, None] * output_head + at[None, :]
        tl.store(output + to, result.to(output.dtype.element_ty), mask=real)

    if INSTRUMENT:
        made = tl.maximum(end - begin, 0).to(tl.int64) * 2
        close_segment(header, counter, made, room, CLOCK)


@triton.jit(do_not_specialize=["splits"])
def kvscope_reduce(
    partial,
    partial_max,
    partial_sum,
    output,
    tiles,
    output_token: tl.int64,
    output_head: tl.int64,
    splits,
    HEAD_SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    PARTS: tl.constexpr,  # a power of two, at least splits
):
    """One program: one query head of one tile of one query; joins the parts of its sequence."""
    tile, head = tl.program_id(0), tl.program_id(1)
    first = tl.load(tiles + tile * 4 + 1)
    part, at = tl.arange(0, PARTS), tl.arange(0, WIDTH)
    present = part < splits
    index = (tile * tl.num_programs(1) + head).to(tl.int64) * splits + part
    top = tl.load(partial_max + index, mask=present, other=float("-inf"))
    weight = tl.exp2(top - tl.max(top))
    total = tl.sum(weight * tl.load(partial_sum + index, mask=present, other=0.0))
    real = present[:, None] & (at < HEAD_SIZE)[None, :]
    mixed = tl.load(partial + index[:, None] * HEAD_SIZE + at[None, :], mask=real, other=0.0)
    result = tl.sum(mixed * weight[:, None], 0) / total
    to = first * output_token + head * output_head + at
    tl.store(output + to, result.to(output.dtype.element_ty), mask=at < HEAD_SIZE)

"""Launching the CUDA kernels: from a batch's work and vLLM's tensors to grids and arguments."""

import os
from dataclasses import dataclass
from math import e, log2

import numpy as np
import torch
import triton

from kvscope_kernels.engine.cuda import kernels
from kvscope_kernels.engine.cuda.batch import MAX_SPLITS, CudaBatch, Tiles
from kvscope_kernels.engine.cuda.buffer import CudaSegments

HARDWARE, LOGICAL = 0, 1  # clocks
CLOCK = LOGICAL if os.environ.get("TRITON_INTERPRET") == "1" else HARDWARE
CHUNK = 4096  # elements that a program of `write` moves at once
FEW_WARPS, MANY_WARPS = 4, 8
# Pipeline stages of a block's loads, where nothing is recorded. K and V are loaded after their
# entry of the block table; with five stages, the next K and V load while these are computed with.
# Large blocks keep the memory busy by themselves, and leave no room for more stages.
DEEP, SHALLOW = 5, 3
# Largest sizes that few warps hold in registers: of what a program adds up, and of a block's K.
FEW_WARPS_SUM, FEW_WARPS_BYTES = 64 * 128, 32 * 128 * 2
LARGEST_BYTES = {2: 128 * 128 * 2, 4: 32 * 128 * 4}  # of a block's K, by bytes of an element


def padded_size(size: int) -> int:
    """The size that kernels compute with: matrices have sides of 16, 32, 64, …"""
    return int(max(16, triton.next_power_of_2(size)))


def fits(block_size: int, head_size: int, element_bytes: int) -> bool:
    """True if the kernels can take such blocks: each is read in one piece."""
    return (
        padded_size(block_size) * padded_size(head_size) * element_bytes
        <= LARGEST_BYTES[element_bytes]
    )


def choose_warps(rows: int, block_size: int, head_size: int, element_bytes: int) -> int:
    """Warps of a program of `attend`: enough to keep all in registers."""
    width = padded_size(head_size)
    few = rows * width <= FEW_WARPS_SUM and element_bytes == 2
    few = few and padded_size(block_size) * width * element_bytes <= FEW_WARPS_BYTES
    return FEW_WARPS if few else MANY_WARPS


def choose_stages(block_size: int, head_size: int, element_bytes: int, recorded: bool) -> int:
    """Pipeline stages of `attend`'s loop: one where stamps lie between its loads."""
    if recorded:
        return 1
    small = padded_size(block_size) * padded_size(head_size) * element_bytes <= FEW_WARPS_BYTES
    return DEEP if small else SHALLOW


def write_chunk(longest_piece: int, block_size: int, elements: int) -> tuple[int, int]:
    """Tokens, and elements of each, that a program of `write` moves at once; powers of two."""
    tokens = 1 if longest_piece == 1 else triton.next_power_of_2(block_size)
    return tokens, min(triton.next_power_of_2(elements), max(64, CHUNK // tokens))


@dataclass(frozen=True)
class Heads:
    """KV heads: all of them, those that are recorded, and the others."""

    all: torch.Tensor
    recorded: torch.Tensor
    others: torch.Tensor


@dataclass(frozen=True)
class DeviceTiles:
    """Tiles, and where their events begin, on the device; and what `attend` leaves to `reduce`."""

    host: Tiles
    heads: Heads
    rows: torch.Tensor  # (tiles, 4) int64
    places: torch.Tensor  # (tiles,) int64
    partial: tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # empty where no part is left over


@dataclass(frozen=True)
class DeviceBatch:
    """One forward pass on the device: copied there once, used by all layers."""

    pieces: torch.Tensor
    longest_piece: int
    tiles: tuple[DeviceTiles, ...]


def to_device(
    batch: CudaBatch, heads: int, head_size: int, head_stride: int, device: torch.device
) -> DeviceBatch:
    """Copy a batch's work in one piece, and make room for the parts of its sequences."""
    kinds = [tiles for tiles in (batch.decode, batch.prefill) if len(tiles.rows)]
    every = np.arange(batch.decode.kv_heads)
    of_heads = [every, every[::head_stride], every[every % head_stride > 0]]
    of_tiles = [part for tiles in kinds for part in (tiles.rows, tiles.places(head_stride))]
    flat = [torch.from_numpy(part).reshape(-1) for part in (batch.pieces, *of_heads, *of_tiles)]
    packed = torch.cat(flat)
    if device.type == "cuda":
        packed = packed.pin_memory().to(device, non_blocking=True)
    pieces, all_heads, recorded, others, *rest = packed.split([len(part) for part in flat])

    def partial(tiles: Tiles) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        left = len(tiles.rows) * heads * tiles.splits if tiles.split else 0
        shapes = ((left, head_size), (left,), (left,))
        first, second, third = (torch.empty(s, dtype=torch.float32, device=device) for s in shapes)
        return first, second, third

    there = Heads(all_heads, recorded, others)
    tiles = zip(kinds, rest[::2], rest[1::2], strict=True)
    return DeviceBatch(
        pieces,
        int(batch.pieces[:, 2].max(initial=1)),
        tuple(DeviceTiles(host, there, rows, at, partial(host)) for host, rows, at in tiles),
    )


def write(
    key: torch.Tensor,
    value: torch.Tensor,
    cache: torch.Tensor,
    slots: torch.Tensor,
    batch: DeviceBatch,
    segments: CudaSegments | None = None,
) -> None:
    """Write K and V, (tokens, KV heads, head size), to their slots of the cache.

    `cache` is (blocks, KV heads, block size, 2 · head size) with K first, its first three axes in
    any order in memory. Events go to `segments`, two for each piece.
    """
    _, kv_heads, block_size, width = cache.shape
    head_size = width // 2
    tokens, chunk = write_chunk(batch.longest_piece, block_size, kv_heads * head_size)
    kernels.kvscope_write[(len(batch.pieces) // 4,)](
        key,
        value,
        cache,
        slots,
        batch.pieces,
        *key.stride()[:2],
        *value.stride()[:2],
        *cache.stride()[:3],
        *_event_arguments(segments, batch.pieces),
        KV_HEADS=kv_heads,
        HEAD_SIZE=head_size,
        BLOCK_SIZE=block_size,
        TOKENS=tokens,
        CHUNK=chunk,
        INSTRUMENT=segments is not None,
        CLOCK=CLOCK,
        num_warps=FEW_WARPS,
        num_stages=1,
    )


def attend(
    query: torch.Tensor,
    cache: torch.Tensor,
    output: torch.Tensor,
    table: torch.Tensor,
    tiles: DeviceTiles,
    scale: float,
    segments: CudaSegments | None = None,
) -> None:
    """Attend, for these tiles: `query` and `output` are (tokens, heads, head size), `table` holds
    the blocks of each row's request. Events go to `segments`, two for each block of a program.

    Where only some heads are recorded, the others get the kernel that records nothing.
    """
    _, kv_heads, block_size, width = cache.shape
    head_size, heads = width // 2, query.shape[1]
    group, count = heads // kv_heads, len(tiles.rows) // 4
    tile, splits = tiles.host.tile_tokens, tiles.host.splits
    rows, size = padded_size(tile * group), query.element_size()
    launches = [(tiles.heads.recorded, segments), (tiles.heads.others, None)]
    if segments is None:
        launches = [(tiles.heads.all, None)]
    for of_launch, recorder in launches:
        if not len(of_launch):
            continue
        kernels.kvscope_attention[(count, len(of_launch), splits)](
            query,
            cache,
            output,
            *tiles.partial,
            tiles.rows,
            of_launch,
            table,
            scale * log2(e),
            *query.stride()[:2],
            *output.stride()[:2],
            *cache.stride()[:3],
            table.stride(0),
            splits,
            tiles.places,
            *_event_arguments(recorder, tiles.rows),
            KV_HEADS=kv_heads,
            GROUP=group,
            TILE=tile,
            ROWS=rows,
            HEAD_SIZE=head_size,
            WIDTH=padded_size(head_size),
            BLOCK_SIZE=block_size,
            SLOTS=padded_size(block_size),
            SPLIT=tiles.host.split,
            INSTRUMENT=recorder is not None,
            CLOCK=CLOCK,
            num_warps=choose_warps(rows, block_size, head_size, size),
            num_stages=choose_stages(block_size, head_size, size, recorder is not None),
        )
    if tiles.host.split:
        kernels.kvscope_reduce[(count, heads)](
            *tiles.partial,
            output,
            tiles.rows,
            *output.stride()[:2],
            splits,
            HEAD_SIZE=head_size,
            WIDTH=padded_size(head_size),
            PARTS=MAX_SPLITS,
            num_warps=FEW_WARPS,
        )


def _event_arguments(
    segments: CudaSegments | None, unused: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, int, int, int]:
    """A kernel's arguments about events; it touches none of them if there are no segments."""
    if segments is None:
        return unused, unused, unused, 0, 0, 0, 0
    return (
        segments.events,
        segments.headers,
        segments.counter,
        segments.layer,
        segments.first_event,
        segments.first,
        segments.event_limit,
    )

"""Batches for attention kernels, drawn at random, and what a plain reference makes of them."""

import random
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from kvscope_kernels.engine.cpu import kernels as compiled
from kvscope_kernels.engine.cpu.attention import as_elements, flat_cache
from kvscope_kernels.engine.cpu.batch import CpuBatch, cut_batch
from kvscope_kernels.engine.cpu.buffer import CpuSegments


@dataclass(frozen=True)
class Shape:
    """A batch: `rows` are (tokens in the cache, new tokens) of each request."""

    rows: list[tuple[int, int]]
    block_size: int
    kv_heads: int
    group: int
    head_size: int
    dtype: torch.dtype = torch.float32
    tile: int = 32
    by_block: bool = False

    @classmethod
    def drawn(cls, seed: int) -> "Shape":
        """Prefill, decode and chunks of lengths, heads and blocks of all kinds."""
        draw = random.Random(seed)
        rows = [
            (draw.choice([0, draw.randint(0, 300)]), draw.choice([1, draw.randint(1, 120)]))
            for _ in range(draw.randint(1, 7))
        ]
        return cls(
            rows=rows,
            block_size=draw.choice([1, 2, 3, 8, 16, 32, 61, 128, 256]),
            kv_heads=draw.choice([1, 2, 3, 8]),
            group=draw.choice([1, 1, 2, 4, 8]),
            head_size=draw.choice([8, 32, 64, 80, 128]),
            dtype=draw.choice([torch.float32, torch.bfloat16]),
            tile=draw.choice([1, 16, 64, 128]),
            by_block=draw.random() < 0.3,
        )


class Case:
    """A batch with its tensors: caches of what came before, and new queries, keys and values."""

    def __init__(self, shape: Shape, seed: int = 0) -> None:
        self.shape = shape
        torch.manual_seed(seed)
        s, generator = shape, np.random.default_rng(seed)
        self.lengths = np.array([context + new for context, new in s.rows], np.int32)
        needed = [-(-length // s.block_size) for length in self.lengths.tolist()]
        blocks = generator.permutation(sum(needed)) + 1
        self.table = np.zeros((len(s.rows), max(needed) + 1), np.int32)
        for row, (first, count) in enumerate(zip(np.cumsum([0, *needed]), needed, strict=False)):
            self.table[row, :count] = blocks[first : first + count]
        size = (len(blocks) + 1, s.kv_heads, s.block_size, 2 * s.head_size)
        layers = torch.randn(size[0], 2, *size[1:]) if s.by_block else torch.randn(2, *size)
        self.cache = (layers[:, 1] if s.by_block else layers[1]).to(s.dtype).contiguous()
        tokens = sum(new for _, new in s.rows)
        self.query = torch.randn(tokens, s.kv_heads * s.group, s.head_size).to(s.dtype)
        self.key = torch.randn(tokens, s.kv_heads, s.head_size).to(s.dtype)
        self.value = torch.randn(tokens, s.kv_heads, s.head_size).to(s.dtype)
        self.starts = np.cumsum([0, *(new for _, new in s.rows)]).astype(np.int32)
        self.cut: CpuBatch = cut_batch(self.starts, self.lengths, self.table, s.block_size, s.tile)

    def expected_events(self, head_stride: int = 1) -> int:
        return 2 * len(self.cut.pieces) + 2 * self.cut.reads * len(
            range(0, self.shape.kv_heads, head_stride)
        )

    def fresh_cache(self) -> torch.Tensor:
        """The cache before the pass, in the layout asked for."""
        s = self.shape
        if not s.by_block:
            return self.cache.clone()
        whole = torch.zeros(len(self.cache), 2, *self.cache.shape[1:], dtype=s.dtype)
        whole[:, 1] = self.cache
        return whole[:, 1]

    def write(self, cache: torch.Tensor, into: CpuSegments | None, kernels: Any) -> None:
        """Run the write kernel; its events go into `into`."""
        kernels.write(
            as_elements(self.key), as_elements(self.value), flat_cache(cache), cache.stride()[:2],
            self.shape.block_size, self.cut.pieces, *sink(into)[:3],
        )  # fmt: skip

    def attend(self, cache: torch.Tensor, into: CpuSegments | None, kernels: Any) -> torch.Tensor:
        """Run the attention kernel; its result."""
        s = self.shape
        longest = int(self.lengths.max())
        words = compiled.scratch_words(s.block_size, s.head_size, s.tile * s.group, longest)
        scratch = np.full((THREADS, words), np.nan, np.float32)
        out = torch.empty(self.query.shape)
        kernels.attend(
            self.query.float().numpy(), flat_cache(cache), out.numpy(), cache.stride()[:2],
            s.block_size, s.kv_heads, self.cut.tiles, self.cut.table,
            np.float32(s.head_size**-0.5), scratch, *sink(into),
        )  # fmt: skip
        return out

    def run(
        self, into: CpuSegments | None = None, kernels: Any = compiled
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The attention's result and the cache after it; events go into `into`."""
        cache = self.fresh_cache()
        self.write(cache, into, kernels)
        return self.attend(cache, into, kernels), cache

    def reference(self, cache: torch.Tensor) -> torch.Tensor:
        """Attention by PyTorch over each request's gathered blocks, in float32."""
        s, out = self.shape, []
        for row, (context, new) in enumerate(s.rows):
            length = context + new
            blocks = torch.from_numpy(self.table[row, : -(-length // s.block_size)]).long()
            # As the kernels lay it out: rows of K, then rows of V.
            kv = cache[blocks].reshape(len(blocks), s.kv_heads, 2, s.block_size, s.head_size)
            k, v = kv.float().permute(2, 1, 0, 3, 4).flatten(2, 3)[:, :, :length]
            queries = self.query[self.starts[row] : self.starts[row + 1]].float().transpose(0, 1)
            mask = torch.ones(new, length, dtype=torch.bool).tril(context)
            attended = scaled_dot_product_attention(
                queries[None], k[None], v[None], attn_mask=mask, enable_gqa=True
            )
            out.append(attended[0].transpose(0, 1))
        return torch.cat(out)


def sink(into: CpuSegments | None) -> tuple[Any, Any, int, int]:
    """The kernels' last arguments."""
    return (
        (into.events, into.counters, into.layer, into.head_stride) if into else (None, None, 0, 1)
    )


THREADS = numba.get_num_threads()


def by_vllm(case: Case) -> torch.Tensor:
    """The attention's result by vLLM's own CPU kernels, on a cache of its own."""
    from vllm import _custom_ops as ops
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    s, table = case.shape, torch.from_numpy(case.table)
    before = case.cache.reshape(len(case.cache), s.kv_heads, 2, s.block_size, s.head_size)
    shape = (len(case.cache), s.kv_heads, 2 * s.block_size, s.head_size)
    keys, values = torch.zeros(shape, dtype=s.dtype).chunk(2, dim=2)
    rows: list[tuple[int, torch.Tensor, torch.Tensor]] = []
    for row, (context, new) in enumerate(s.rows):
        for position in range(context + new):
            block, slot = int(table[row, position // s.block_size]), position % s.block_size
            token = int(case.starts[row]) + position - context
            old = position < context
            key = before[block, :, 0, slot] if old else case.key[token]
            value = before[block, :, 1, slot] if old else case.value[token]
            rows.append((block * s.block_size + slot, key, value))
    slots = torch.tensor([slot for slot, _, _ in rows])
    key, value = (torch.stack([row[place] for row in rows]) for place in (1, 2))
    ops.cpu_attn_reshape_and_cache(key, value, keys, values, slots, "vec")
    starts = torch.from_numpy(case.starts)
    lengths = torch.from_numpy(case.lengths)
    plan = ops.cpu_attn_get_scheduler_metadata(
        num_reqs=len(s.rows),
        num_heads=s.kv_heads * s.group,
        num_kv_heads=s.kv_heads,
        head_dim=s.head_size,
        seq_lens=lengths,
        dtype=s.dtype,
        query_start_loc=starts,
        causal=True,
        sliding_window_size=-1,
        isa="vec",
        enable_kv_split=True,
    )
    out, scale = torch.zeros_like(case.query), s.head_size**-0.5
    ops.cpu_attention_with_kv_cache(
        case.query, keys, values, out, starts, lengths, scale, True, None, -1, table, 0.0, plan,
        None,
    )  # fmt: skip
    return out

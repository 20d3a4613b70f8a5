"""Batches for the CPU kernels, and what these and vLLM's make of them."""

from typing import Any

import numba
import numpy as np
import torch

from kvscope_kernels.engine.cpu import kernels as compiled
from kvscope_kernels.engine.cpu.attention import as_elements, flat_cache
from kvscope_kernels.engine.cpu.batch import CpuBatch, cut_batch
from kvscope_kernels.engine.cpu.buffer import CpuSegments
from tests.engine import attention_batches
from tests.engine.attention_batches import Shape


class Case(attention_batches.Case):
    """A batch as the kernels cut it."""

    def __init__(self, shape: Shape, seed: int = 0) -> None:
        super().__init__(shape, seed)
        s = shape
        self.cut: CpuBatch = cut_batch(self.starts, self.lengths, self.table, s.block_size, s.tile)

    def expected_events(self, head_stride: int = 1) -> int:
        return 2 * len(self.cut.pieces) + 2 * self.cut.reads * len(
            range(0, self.shape.kv_heads, head_stride)
        )

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

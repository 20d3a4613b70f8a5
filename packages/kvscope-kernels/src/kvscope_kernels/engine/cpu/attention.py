"""`instrumented` on a CPU: vLLM's attention replaced by kernels that can record KV events."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numba
import numpy as np
import numpy.typing as npt
import torch

from kvscope.api.vllm import attention
from kvscope_kernels.engine.cpu import kernels
from kvscope_kernels.engine.cpu.batch import CpuBatch, cut_batch, tile_tokens
from kvscope_kernels.engine.cpu.clock import read_ticks
from kvscope_kernels.kv_events import ATTENTION, WRITE

NOT_TRACED = (None, None, 0, 1)  # in place of segments


@dataclass
class NumbaMetadata(attention.AttentionMetadata):
    """A batch as the kernels see it, and room for their intermediate results."""

    work: CpuBatch
    tokens: int
    scratch: npt.NDArray[np.float32]
    starts: npt.NDArray[np.integer]  # (rows + 1) first queries of each row
    lengths: npt.NDArray[np.integer]  # (rows) tokens of each row after the pass
    block_size: int

    def rows(self) -> list[attention.BatchRow]:
        """The requests."""
        table = torch.from_numpy(self.work.table)
        return attention.batch_rows(
            self.starts.tolist(), self.lengths.tolist(), table, self.block_size
        )


class NumbaBatchBuilder(attention.BatchBuilder):
    """Cuts batches up for the kernels, and opens traced passes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        spec, max_tokens = self.kv_cache_spec, self.vllm_config.model_config.max_model_len
        self.tile = tile_tokens(self.group, max_tokens)
        words = kernels.scratch_words(
            spec.block_size, spec.head_size, self.tile * self.group, max_tokens
        )
        self.scratch = np.zeros((numba.get_num_threads(), words), np.float32)

    def batch(self, common: attention.CommonAttentionMetadata) -> NumbaMetadata:
        """The batch's pieces and tiles."""
        count, size = common.num_reqs, self.kv_cache_spec.block_size
        starts = common.query_start_loc_cpu.numpy()[: count + 1]
        lengths = common.seq_lens.numpy()[:count]
        table = common.block_table_tensor.numpy()
        work = cut_batch(starts, lengths, table, size, self.tile)
        if self.tracer is not None:
            self.tracer.open_pass(self.tile, len(work.pieces), work.reads)
        return NumbaMetadata(work, common.num_actual_tokens, self.scratch, starts, lengths, size)


class NumbaAttention(attention.CausalAttention):
    """Attention by the CPU kernels, which use their own order of elements within a block.

    The cache of a layer is (blocks, KV heads, block size, 2 · head size); a head of a block holds
    all rows of K, then all rows of V.
    """

    def write_and_attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        batch: NumbaMetadata,
        output: torch.Tensor,
    ) -> None:
        """Run the two kernels, and record their times if the layer is traced."""
        tokens, work, tracer = batch.tokens, batch.work, self.tracer
        cache, strides, size = flat_cache(kv_cache), kv_cache.stride()[:2], kv_cache.shape[2]
        segments = tracer.segments(layer) if tracer is not None else None
        events, counters, _, stride = segments or NOT_TRACED
        start = read_ticks() if segments else 0
        kernels.write(
            as_elements(key[:tokens]), as_elements(value[:tokens]), cache, strides, size,
            work.pieces, events, counters, layer,
        )  # fmt: skip
        if segments:
            tracer.note(layer, WRITE, start, read_ticks())
        queries = query[:tokens].float().contiguous()
        into = output[:tokens].view(queries.shape)
        direct = into.dtype == torch.float32 and into.is_contiguous()
        result = into if direct else torch.empty_like(queries)
        start = read_ticks() if segments else 0
        kernels.attend(
            queries.numpy(), cache, result.numpy(), strides, size, self.kv_heads, work.tiles,
            work.table, np.float32(self.scale), batch.scratch, events, counters, layer, stride,
        )  # fmt: skip
        if segments:
            tracer.note(layer, ATTENTION, start, read_ticks())
        if not direct:
            into.copy_(result)

    def gathered(
        self, kv_cache: torch.Tensor, blocks: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of these blocks, (tokens, KV heads, head size) each."""
        both = self._k_and_v(kv_cache[blocks])
        k, v = (both[:, :, place].transpose(1, 2).flatten(0, 1) for place in (0, 1))
        return k, v

    def do_kv_cache_update(
        self,
        layer: Any,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Write K and V into the cache in the kernels' order of elements, without events."""
        both, size = self._k_and_v(kv_cache), kv_cache.shape[2]
        for place, written in enumerate((key, value)):
            both[slot_mapping // size, :, place, slot_mapping % size] = written

    def _k_and_v(self, blocks: torch.Tensor) -> torch.Tensor:
        """A view (blocks, KV heads, K or V, block size, head size)."""
        return blocks.flatten(2).unflatten(2, (2, blocks.shape[2], self.head_size))


def as_elements(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """A tensor's elements, contiguous: float32, or the bits of bfloat16 as uint16."""
    tensor = tensor.contiguous()
    array: npt.NDArray[Any] = (
        tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor
    ).numpy()
    return array


def flat_cache(kv_cache: torch.Tensor) -> npt.NDArray[Any]:
    """All memory from a layer's first element to its last, as one flat array."""
    last = sum(
        (n - 1) * stride for n, stride in zip(kv_cache.shape, kv_cache.stride(), strict=True)
    )
    return as_elements(kv_cache.as_strided((last + 1,), (1,)))


class NumbaBackend(attention.AnyBlocks):
    """Replaces vLLM's CPU backend under its name, by which vLLM looks it up."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float32, torch.bfloat16]
    name = "CPU_ATTN"
    attention = NumbaAttention
    builder = NumbaBatchBuilder

"""`instrumented` on a GPU: kvscope's attention for vLLM, whose kernels can record KV events.

It is vLLM's `CUSTOM` backend: causal attention over all tokens, for blocks that fit in a
processor's registers: 128 tokens with heads of 128 elements of 16 bits.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from kvscope.api.vllm import attention
from kvscope_kernels.engine.cuda import launch
from kvscope_kernels.engine.cuda.batch import cut_batch
from kvscope_kernels.kv_events import ATTENTION, WRITE
from kvscope_kernels.planning import tile_tokens


@dataclass
class CudaMetadata(attention.AttentionMetadata):
    """A batch: what the kernels are to do, the same for all layers."""

    work: launch.DeviceBatch
    table: torch.Tensor  # (requests, …) blocks
    slots: torch.Tensor  # (tokens,) where each new token goes


class CudaBatchBuilder(attention.BatchBuilder):
    """Cuts batches up for the kernels, and copies their work to the device."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tile = tile_tokens(self.group, self.kv_cache_spec.dtype.itemsize)
        self.processors = (
            torch.cuda.get_device_properties(self.device).multi_processor_count
            if self.device.type == "cuda"
            else 1
        )

    def batch(self, common: attention.CommonAttentionMetadata) -> CudaMetadata:
        """The batch's pieces and tiles on the device."""
        spec, count, tracer = self.kv_cache_spec, common.num_reqs, self.tracer
        lengths = common.seq_lens_cpu_upper_bound  # exact, as nothing is speculated
        work = cut_batch(
            common.query_start_loc_cpu[: count + 1].numpy(),
            (common.seq_lens.cpu() if lengths is None else lengths)[:count].numpy(),
            spec.block_size,
            spec.num_kv_heads,
            self.tile,
            self.processors,
        )
        head_stride = 1
        if tracer is not None:
            tracer.open_pass(self.tile, self.processors)
            head_stride = tracer.head_stride
        on_device = launch.to_device(work, self.heads, spec.head_size, head_stride, self.device)
        return CudaMetadata(on_device, common.block_table_tensor, common.slot_mapping)


class CudaAttention(attention.CausalAttention):
    """Attention by the CUDA kernels; in the cache, a token's K is before its V."""

    def write_and_attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        batch: CudaMetadata,
        output: torch.Tensor,
    ) -> None:
        """Launch the kernels, each with the segments that it writes events to."""
        work, tracer = batch.work, self.tracer
        pieces, segments = len(work.pieces) // 4, None
        if tracer is not None:
            segments = tracer.segments(WRITE, layer, 2 * pieces, pieces)
        launch.write(key, value, kv_cache, batch.slots, work, segments)
        for tiles in work.tiles:
            if tracer is not None:
                stride = tracer.head_stride
                events, count = tiles.host.events(stride), tiles.host.segments(stride)
                segments = tracer.segments(ATTENTION, layer, events, count)
            launch.attend(query, kv_cache, output, batch.table, tiles, self.scale, segments)


class CudaBackend(attention.AnyBlocks):
    """kvscope's attention on a GPU, in vLLM's slot `CUSTOM`."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]
    name = "CUSTOM"
    attention = CudaAttention
    builder = CudaBatchBuilder

    @classmethod
    def supports_combination(
        cls,
        head_size: int,
        dtype: torch.dtype,
        kv_cache_dtype: str | None,
        block_size: int | None,
        *rest: Any,
        **more: Any,
    ) -> str | None:
        """Reason why vLLM cannot have blocks of this shape; None if it can."""
        if block_size is None or launch.fits(block_size, head_size, dtype.itemsize):
            return None
        return f"blocks of {block_size} tokens, {head_size} elements each, are too large"

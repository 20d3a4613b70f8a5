"""kvscope's attention for vLLM on CUDA: the paged kernels of `triton_kernels`, which record events.

It is vLLM's `CUSTOM` backend: causal attention over all tokens, for blocks that fit in a
processor's registers: 128 tokens with heads of 128 elements of 16 bits.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from vllm.model_executor.models.utils import extract_layer_index
from vllm.v1.attention.backend import (
    AttentionMetadata,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)
from vllm.v1.kv_cache_interface import AttentionSpec

from kvscope.engine.attention.backend import AnyBlocks, CausalAttention
from kvscope.engine.attention.cuda import launch as gpu_launch
from kvscope.engine.attention.cuda.batch import batch, tile_tokens
from kvscope.engine.attention.cuda.buffer import Segments
from kvscope.engine.attention.cuda.tracer import GpuTracer
from kvscope.events import ATTENTION, WRITE


@dataclass
class CudaMetadata(AttentionMetadata):
    """A batch: what the kernels are to do, the same for all layers."""

    work: gpu_launch.DeviceBatch
    table: torch.Tensor  # (requests, …) blocks
    slots: torch.Tensor  # (tokens,) where each new token goes


class CudaMetadataBuilder(AttentionMetadataBuilder[CudaMetadata]):
    """Turns vLLM's metadata of a batch into the kernels' work, once a forward pass."""

    def __init__(
        self,
        kv_cache_spec: AttentionSpec,
        layer_names: list[str],
        vllm_config: Any,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        config = vllm_config.model_config
        self.heads = config.get_num_attention_heads(vllm_config.parallel_config)
        group = self.heads // kv_cache_spec.num_kv_heads
        self.tile = tile_tokens(group, kv_cache_spec.dtype.itemsize)
        on_gpu = device.type == "cuda"
        self.processors = (
            torch.cuda.get_device_properties(device).multi_processor_count if on_gpu else 1
        )
        layer = vllm_config.compilation_config.static_forward_context[layer_names[0]]
        tracer: GpuTracer | None = layer.impl.tracer
        self.head_stride = tracer.head_stride if tracer else 1
        if tracer is not None:
            tracer.tile_tokens, tracer.workers = self.tile, self.processors

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> CudaMetadata:
        """The work of this batch; parameters are named as vLLM passes them."""
        common, spec = common_attn_metadata, self.kv_cache_spec
        count = common.num_reqs
        lengths = common.seq_lens_cpu_upper_bound  # exact, as nothing is speculated
        work = batch(
            common.query_start_loc_cpu[: count + 1].numpy(),
            (common.seq_lens.cpu() if lengths is None else lengths)[:count].numpy(),
            spec.block_size,
            spec.num_kv_heads,
            self.tile,
            self.processors,
        )
        on_device = gpu_launch.to_device(
            work, self.heads, spec.head_size, self.head_stride, self.device
        )
        return CudaMetadata(on_device, common.block_table_tensor, common.slot_mapping)


class CudaAttention(CausalAttention):
    """Writes K and V to their slots, and attends to each request's blocks."""

    def forward(
        self,
        layer: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: CudaMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write and attend: `query` and `output` (tokens, heads, head size), `key` and `value`
        (tokens, KV heads, head size), `kv_cache` (blocks, KV heads, block size, 2 · head size)."""
        if attn_metadata is None:  # vLLM's dry run
            return output.fill_(0)
        work, table = attn_metadata.work, attn_metadata.table
        pieces = len(work.pieces) // 4
        segments = self._segments(WRITE, layer, 2 * pieces, pieces)
        gpu_launch.write(key, value, kv_cache, attn_metadata.slots, work, segments)
        stride = self.tracer.head_stride if self.tracer else 1
        for tiles in work.tiles:
            events, count = tiles.host.events(stride), tiles.host.segments(stride)
            segments = self._segments(ATTENTION, layer, events, count)
            gpu_launch.attend(query, kv_cache, output, table, tiles, self.scale, segments)
        return output

    def _segments(
        self, kernel: str, layer: torch.nn.Module, events: int, count: int
    ) -> Segments | None:
        """Where a launch of this layer writes its events; None if it is not traced."""
        if self.tracer is None:
            return None
        number = extract_layer_index(layer.layer_name)
        made: Segments | None = self.tracer.segments(kernel, number, events, count)
        return made


class CudaBackend(AnyBlocks):
    """vLLM's `CUSTOM` backend."""

    forward_includes_kv_cache_update: bool = True
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]
    name = "CUSTOM"
    attention = CudaAttention
    builder = CudaMetadataBuilder

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
        """Why vLLM cannot have blocks of this shape; None if it can."""
        if block_size is None or gpu_launch.fits(block_size, head_size, dtype.itemsize):
            return None
        return f"blocks of {block_size} tokens, {head_size} elements each, are too large"

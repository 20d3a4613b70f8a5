"""`instrumented` on a CPU: vLLM's attention replaced by kernels that can record KV events."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numba
import numpy as np
import numpy.typing as npt
import torch
from vllm.model_executor.models.utils import extract_layer_index
from vllm.v1.attention.backend import (
    AttentionMetadata,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)
from vllm.v1.kv_cache_interface import AttentionSpec

from kvscope.engine.attention.backend import AnyBlocks, CausalAttention
from kvscope.engine.attention.cpu import kernels as numba_kernels
from kvscope.engine.attention.cpu.batch import Batch, batch, tile_tokens
from kvscope.engine.attention.cpu.clock import now
from kvscope.engine.attention.cpu.tracer import Tracer
from kvscope.engine.attention.reference import Asked
from kvscope.events import ATTENTION, WRITE

EVENTS_OF_A_PIECE = EVENTS_OF_A_READ = 2  # K and V
NOT_TRACED = (None, None, 0, 1)  # in place of segments


@dataclass
class NumbaMetadata(AttentionMetadata):
    """A batch as the kernels see it, and room for their intermediate results."""

    batch: Batch
    tokens: int
    scratch: npt.NDArray[np.float32]
    starts: Any  # (rows + 1) first queries of each row, for `asked`
    lengths: Any  # (rows) tokens of each row after the pass
    block_size: int

    def asked(self) -> list[Asked]:
        """The requests, as checks of attention see them."""
        rows = zip(self.starts, np.diff(self.starts), self.lengths, self.batch.table, strict=False)
        return [
            Asked(int(first), int(queries), int(length), self._blocks(table, int(length)))
            for first, queries, length, table in rows
        ]

    def _blocks(self, table: npt.NDArray[np.int32], length: int) -> torch.Tensor:
        return torch.from_numpy(table[: -(-length // self.block_size)]).long()


class NumbaMetadataBuilder(AttentionMetadataBuilder[NumbaMetadata]):
    """Turns vLLM's metadata of a batch into ours, once a forward pass."""

    def __init__(
        self,
        kv_cache_spec: AttentionSpec,
        layer_names: list[str],
        vllm_config: Any,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        model = vllm_config.model_config
        heads = model.get_num_attention_heads(vllm_config.parallel_config)
        group = heads // kv_cache_spec.num_kv_heads
        self.size = kv_cache_spec.block_size
        self.tile = tile_tokens(group, model.max_model_len)
        words = numba_kernels.scratch_words(
            self.size, kv_cache_spec.head_size, self.tile * group, model.max_model_len
        )
        self.scratch = np.zeros((numba.get_num_threads(), words), np.float32)
        layer = vllm_config.compilation_config.static_forward_context[layer_names[0]]
        self.tracer: Tracer | None = layer.impl.tracer
        if self.tracer is not None:
            self.tracer.tile_tokens = self.tile

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> NumbaMetadata:
        """The batch cut up; parameters are named as vLLM passes them."""
        common = common_attn_metadata
        rows = common.num_reqs
        starts = common.query_start_loc_cpu.numpy()[: rows + 1]
        lengths = common.seq_lens.numpy()[:rows]
        cut = batch(
            starts,
            lengths,
            common.block_table_tensor.numpy(),
            self.size,
            self.tile,
        )
        if self.tracer is not None:
            writes, reads = EVENTS_OF_A_PIECE * len(cut.pieces), EVENTS_OF_A_READ * cut.reads
            self.tracer.size_for(writes, reads)
        tokens = common.num_actual_tokens
        return NumbaMetadata(cut, tokens, self.scratch, starts, lengths, self.size)


class NumbaAttention(CausalAttention):
    """Writes K and V to their blocks, and attends to each request's blocks."""

    def forward(
        self,
        layer: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: NumbaMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write and attend: `query` (tokens, heads, head size), `key` and `value` (tokens, KV
        heads, head size), `kv_cache` (blocks, KV heads, block size, 2 · head size); the result
        goes to `output`, shaped as `query`."""
        if attn_metadata is None:  # vLLM's dry run
            return output
        tokens, cut = attn_metadata.tokens, attn_metadata.batch
        cache, strides, size = flat(kv_cache), kv_cache.stride()[:2], kv_cache.shape[2]
        number = extract_layer_index(layer.layer_name)
        segments = self.tracer.segments(number) if self.tracer is not None else None
        events, counters, _, stride = segments or NOT_TRACED
        began = now() if segments else 0
        numba_kernels.write(
            elements(key[:tokens]), elements(value[:tokens]), cache, strides, size, cut.pieces,
            events, counters, number,
        )  # fmt: skip
        if self.tracer is not None and segments:
            self.tracer.ran(number, WRITE, began, now())
        asked = query[:tokens].float().contiguous()
        into = output[:tokens].view(asked.shape)
        direct = into.dtype == torch.float32 and into.is_contiguous()
        answer = into if direct else torch.empty_like(asked)
        ready = now() if segments else 0
        numba_kernels.attend(
            asked.numpy(), cache, answer.numpy(), strides, size, self.kv_heads, cut.tiles,
            cut.table, np.float32(self.scale), attn_metadata.scratch, events, counters, number,
            stride,
        )  # fmt: skip
        if self.tracer is not None and segments:
            self.tracer.ran(number, ATTENTION, ready, now())
        if not direct:
            into.copy_(answer)
        if self.checks is not None:
            self.checks.look(number, self, (query, key, value), kv_cache, attn_metadata, output)
        return output

    def gathered(
        self, kv_cache: torch.Tensor, blocks: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of these blocks, (tokens, KV heads, head size) each.

        A head of a block has all rows of K before those of V, whatever the cache's shape says.
        """
        count, heads, size, _ = kv_cache[blocks].shape
        both = kv_cache[blocks].reshape(count, heads, 2, size, self.head_size)
        k, v = (both[:, :, place].transpose(1, 2).flatten(0, 1) for place in (0, 1))
        return k, v


def elements(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """A tensor's elements, contiguous: float32, or the bits of bfloat16 as uint16."""
    tensor = tensor.contiguous()
    array: npt.NDArray[Any] = (
        tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor
    ).numpy()
    return array


def flat(kv_cache: torch.Tensor) -> npt.NDArray[Any]:
    """All memory from a layer's first element to its last, whatever lies between its blocks."""
    last = sum(
        (n - 1) * stride for n, stride in zip(kv_cache.shape, kv_cache.stride(), strict=True)
    )
    return elements(kv_cache.as_strided((last + 1,), (1,)))


class NumbaBackend(AnyBlocks):
    """Takes the place of vLLM's CPU backend, and its name, by which vLLM looks it up."""

    forward_includes_kv_cache_update: bool = True
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float32, torch.bfloat16]
    name = "CPU_ATTN"
    attention = NumbaAttention
    builder = NumbaMetadataBuilder

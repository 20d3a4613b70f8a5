"""`paged`: attention over a paged KV cache in plain PyTorch, for any block size and layout.

vLLM's CPU kernels take blocks of multiples of 32 tokens, and each layer's blocks in one piece.
This backend takes any, and is short enough to be the reference that others are compared with. It
gathers a request's blocks and leaves the arithmetic to `scaled_dot_product_attention`.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.nn.functional import scaled_dot_product_attention
from vllm.model_executor.models.utils import extract_layer_index
from vllm.v1.attention.backend import (
    AttentionMetadata,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)
from vllm.v1.kv_cache_interface import AttentionSpec

from kvscope.engine.attention.backend import AnyBlocks, CausalAttention
from kvscope.engine.attention.reference import Asked


@dataclass
class Row:
    """One request of a batch: its queries and what they attend to."""

    queries: slice  # of the batch's tokens
    length: int  # tokens in the cache after this pass
    blocks: torch.Tensor  # its block table, cut to the blocks in use
    mask: torch.Tensor | None  # (queries, length); None where nothing is hidden or all is causal
    causal: bool


@dataclass
class PagedMetadata(AttentionMetadata):
    """The batch, request by request."""

    rows: list[Row]

    def asked(self) -> list[Asked]:
        """The requests, as checks of attention see them."""
        return [
            Asked(row.queries.start, row.queries.stop - row.queries.start, row.length, row.blocks)
            for row in self.rows
        ]


class PagedMetadataBuilder(AttentionMetadataBuilder[PagedMetadata]):
    """Turns vLLM's metadata of a batch into ours, once a forward pass."""

    def __init__(
        self,
        kv_cache_spec: AttentionSpec,
        layer_names: list[str],
        vllm_config: Any,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> PagedMetadata:
        """The rows of this batch; parameters are named as vLLM passes them."""
        common = common_attn_metadata
        size = self.kv_cache_spec.block_size
        starts = common.query_start_loc.tolist()
        lengths = common.seq_lens[: common.num_reqs].tolist()
        rows = [
            self._row(start, end, length, common.block_table_tensor[row], size)
            for row, (start, end, length) in enumerate(
                zip(starts, starts[1:], lengths, strict=False)
            )
        ]
        return PagedMetadata(rows)

    def _row(self, start: int, end: int, length: int, table: torch.Tensor, size: int) -> Row:
        queries = end - start
        mask = None
        if 1 < queries < length:  # the queries are the newest tokens, not the first ones
            mask = torch.ones(queries, length, dtype=torch.bool).tril(length - queries)
        blocks = table[: -(-length // size)].long()
        return Row(slice(start, end), length, blocks, mask, causal=1 < queries == length)


class PagedAttention(CausalAttention):
    """Writes K and V to their slots, and attends to each request's blocks."""

    def do_kv_cache_update(
        self,
        layer: torch.nn.Module,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Write K and V, (tokens, KV heads, head size), to the slots of their tokens."""
        size = kv_cache.shape[2]
        slots = slot_mapping[: key.shape[0]]
        written = torch.cat((key[: slots.shape[0]], value[: slots.shape[0]]), dim=-1)
        kv_cache[slots // size, :, slots % size] = written

    def forward(
        self,
        layer: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: PagedMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attend: `query` (tokens, heads, head size), `kv_cache` (blocks, KV heads, block size,
        2 · head size), K first; the result goes to `output`, shaped as `query`."""
        if attn_metadata is None:  # vLLM's dry run
            return output
        for row in attn_metadata.rows:
            # (blocks, heads, size, 2 · head size) → (heads, tokens, 2 · head size)
            gathered = kv_cache[row.blocks].transpose(0, 1).flatten(1, 2)[:, : row.length]
            attended = scaled_dot_product_attention(
                query[row.queries].transpose(0, 1)[None],
                gathered[None, ..., : self.head_size],
                gathered[None, ..., self.head_size :],
                attn_mask=row.mask,
                is_causal=row.causal,
                scale=self.scale,
                enable_gqa=self.heads != self.kv_heads,
            )
            output[row.queries] = attended[0].transpose(0, 1)
        if self.checks is not None:
            number, given = extract_layer_index(layer.layer_name), (query, key, value)
            self.checks.look(number, self, given, kv_cache, attn_metadata, output)
        return output

    def gathered(
        self, kv_cache: torch.Tensor, blocks: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of these blocks, (tokens, KV heads, head size) each."""
        both = kv_cache[blocks].transpose(1, 2).flatten(0, 1)
        return both[..., : self.head_size], both[..., self.head_size :]


class PagedBackend(AnyBlocks):
    """Takes the place of vLLM's CPU backend, and its name, by which vLLM looks it up."""

    forward_includes_kv_cache_update: bool = False
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float32, torch.float16, torch.bfloat16]
    name = "CPU_ATTN"
    attention = PagedAttention
    builder = PagedMetadataBuilder

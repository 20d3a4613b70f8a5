"""`paged`: attention over a paged KV cache in plain PyTorch, for any block size, layout and dtype.

vLLM's CPU kernels take blocks of multiples of 32 tokens, and each layer's blocks in one piece;
`instrumented` takes any, but not float16. This backend is short enough to be the reference that
others are compared with. It gathers a request's blocks and leaves the arithmetic to
`scaled_dot_product_attention`.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn.functional import scaled_dot_product_attention
from vllm.v1.attention.backend import AttentionMetadata, CommonAttentionMetadata

from kvscope.engine.attention.batch import BatchRow, batch_rows
from kvscope.engine.vllm.attention.backend import AnyBlocks, BatchBuilder, CausalAttention


@dataclass
class PagedMetadata(AttentionMetadata):
    """A batch, request by request."""

    requests: list[BatchRow]
    masks: list[torch.Tensor | None]  # (queries, length) of each
    slots: torch.Tensor  # (tokens,) where each new token goes: block · block size + place in it

    def rows(self) -> list[BatchRow]:
        """The requests."""
        return self.requests


class PagedBatchBuilder(BatchBuilder):
    """Makes the masks of a batch's requests."""

    def batch(self, common: CommonAttentionMetadata) -> PagedMetadata:
        """The batch's requests, and what their queries see."""
        lengths = common.seq_lens[: common.num_reqs].tolist()
        rows = batch_rows(
            common.query_start_loc.tolist(),
            lengths,
            common.block_table_tensor,
            self.kv_cache_spec.block_size,
        )
        return PagedMetadata(rows, [*map(mask, rows)], common.slot_mapping)


def mask(row: BatchRow) -> torch.Tensor | None:
    """(queries, length) that each query sees; None if it sees all, or each token up to its own."""
    if row.queries in (1, row.length):
        return None
    visible = torch.ones(row.queries, row.length, dtype=torch.bool)
    return visible.tril(row.length - row.queries)


class PagedAttention(CausalAttention):
    """Writes K and V to their slots, and attends to each request's blocks."""

    def write_and_attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        batch: PagedMetadata,
        output: torch.Tensor,
    ) -> None:
        """One request after the other; in `kv_cache`, a token's K is before its V."""
        slots = batch.slots[: key.shape[0]]
        tokens = slots.shape[0]
        self.do_kv_cache_update(None, key[:tokens], value[:tokens], kv_cache, slots)
        for row, seen in zip(batch.requests, batch.masks, strict=True):
            # (blocks, heads, size, 2 · head size) → (heads, tokens, 2 · head size)
            gathered = kv_cache[row.blocks].transpose(0, 1).flatten(1, 2)[:, : row.length]
            attended = scaled_dot_product_attention(
                query[row.own].transpose(0, 1)[None],
                gathered[None, ..., : self.head_size],
                gathered[None, ..., self.head_size :],
                attn_mask=seen,
                is_causal=seen is None and row.queries > 1,
                scale=self.scale,
                enable_gqa=self.heads != self.kv_heads,
            )
            output[row.own] = attended[0].transpose(0, 1)

    def gathered(
        self, kv_cache: torch.Tensor, blocks: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of these blocks, (tokens, KV heads, head size) each."""
        content = kv_cache[blocks].transpose(1, 2).flatten(0, 1)
        return content[..., : self.head_size], content[..., self.head_size :]


class PagedBackend(AnyBlocks):
    """Takes the place of vLLM's CPU backend, and its name, by which vLLM looks it up."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float32, torch.float16, torch.bfloat16]
    name = "CPU_ATTN"
    attention = PagedAttention
    builder = PagedBatchBuilder

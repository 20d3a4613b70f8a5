"""Base classes of a package's attention backend, and the arguments that vLLM calls it with."""

from vllm.v1.attention.backend import AttentionMetadata, CommonAttentionMetadata

from kvscope.engine.attention.batch import BatchRow, batch_rows
from kvscope.engine.vllm.attention.backend import AnyBlocks, BatchBuilder, CausalAttention

__all__ = [
    "AnyBlocks",
    "AttentionMetadata",
    "BatchBuilder",
    "BatchRow",
    "CausalAttention",
    "CommonAttentionMetadata",
    "batch_rows",
]

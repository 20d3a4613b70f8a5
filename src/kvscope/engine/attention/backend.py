"""What kvscope's attention backends have in common: causal attention over blocks of any size."""

from typing import Any

from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionType, MultipleOf
from vllm.v1.kv_cache_interface import KVCacheLayout

from kvscope.engine.attention.tracing import of_engine_being_built


class CausalAttention(AttentionImpl[Any]):
    """Attention of each token to all tokens before it, without biases or caps."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        **unused: Any,
    ) -> None:
        if alibi_slopes or sliding_window or logits_soft_cap or attn_type != AttentionType.DECODER:
            raise NotImplementedError(
                "kvscope's attention is causal and full, without biases or caps"
            )
        self.heads, self.kv_heads = num_heads, num_kv_heads
        self.head_size, self.scale = head_size, float(scale)
        self.tracer: Any = of_engine_being_built()


class AnyBlocks(AttentionBackend):
    """A backend whose kernels take vLLM's blocks as they are, in either layout."""

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        """Any block size."""
        return [MultipleOf(1)]

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        """Layer by layer, or all layers of a block together."""
        return KVCacheLayout.LBHNC, KVCacheLayout.BLHNC

"""What kvscope's attention backends have in common: causal attention over blocks of any size."""

from typing import Any, ClassVar

from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionType, MultipleOf
from vllm.v1.kv_cache_interface import KVCacheLayout

from kvscope.engine.attention.reference import ReferenceChecks
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
            # No model of kvscope's asks for these; another's is refused, not computed wrongly.
            raise NotImplementedError(
                "kvscope's attention is causal and full, without biases or caps"
            )
        self.heads, self.kv_heads = num_heads, num_kv_heads
        self.head_size, self.scale = head_size, float(scale)
        self.tracer: Any = of_engine_being_built()
        self.checks: ReferenceChecks | None = None  # while outputs are checked


class AnyBlocks(AttentionBackend):
    """A backend whose kernels take vLLM's blocks as they are, in either layout.

    A backend says under which `name` vLLM looks it up, what its attention is, and what prepares a
    batch for that.
    """

    name: ClassVar[str]
    attention: ClassVar[type[CausalAttention]]
    builder: ClassVar[type[Any]]

    @classmethod
    def get_name(cls) -> str:
        """The name that vLLM knows it under."""
        return cls.name

    @classmethod
    def get_impl_cls(cls) -> type[CausalAttention]:
        """The attention itself."""
        return cls.attention

    @classmethod
    def get_builder_cls(cls) -> type[Any]:
        """What prepares a batch for it."""
        return cls.builder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        """Any block size."""
        return [MultipleOf(1)]

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        """Layer by layer, or all layers of a block together."""
        return KVCacheLayout.LBHNC, KVCacheLayout.BLHNC

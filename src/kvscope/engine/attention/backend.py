"""What kvscope's attention backends share: causal attention over blocks of any size."""

from abc import abstractmethod
from functools import cache
from typing import Any, ClassVar

import torch
from vllm.model_executor.models.utils import extract_layer_index
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
    MultipleOf,
)
from vllm.v1.kv_cache_interface import AttentionSpec, KVCacheLayout

from kvscope.engine.attention.reference import ReferenceChecks

layer_index = cache(extract_layer_index)


class CausalAttention(AttentionImpl[Any]):
    """Attention of each token to all tokens before it, without biases or caps.

    `tracer` records its KV events, `checks` compare its outputs; each is None where that is off.
    """

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
            # None of kvscope's models needs these; another's is refused, not computed wrongly.
            raise NotImplementedError(
                "kvscope's attention is causal and full, without biases or caps"
            )
        self.heads, self.kv_heads = num_heads, num_kv_heads
        self.head_size, self.scale = head_size, float(scale)
        self.tracer: Any = None  # the device's Tracer
        self.checks: ReferenceChecks | None = None

    def forward(
        self,
        layer: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Any,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Called by vLLM, with parameters of these names: `write_and_attend`, and the checks."""
        if attn_metadata is None:  # vLLM's dry run
            return output.fill_(0)
        index, tokens = layer_index(layer.layer_name), (query, key, value)
        self.write_and_attend(index, *tokens, kv_cache, attn_metadata, output)
        if self.checks is not None:
            self.checks.compare(index, self, tokens, kv_cache, attn_metadata.rows, output)
        return output

    @abstractmethod
    def write_and_attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        batch: Any,
        output: torch.Tensor,
    ) -> None:
        """Write K and V to their blocks, and attend to each request's blocks.

        `query` and `output` (tokens, heads, head size), `key` and `value` (tokens, KV heads, head
        size), `kv_cache` (blocks, KV heads, block size, 2 · head size); `batch` is of the builder.
        """


class BatchBuilder(AttentionMetadataBuilder[Any]):
    """Turns vLLM's description of a batch into the kernels' work, once a forward pass."""

    def __init__(
        self,
        kv_cache_spec: AttentionSpec,
        layer_names: list[str],
        vllm_config: Any,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        model = vllm_config.model_config
        self.heads = model.get_num_attention_heads(vllm_config.parallel_config)
        self.group = self.heads // kv_cache_spec.num_kv_heads  # heads that share a KV head
        self._layer = vllm_config.compilation_config.static_forward_context[layer_names[0]]

    @property
    def tracer(self) -> Any:
        """The tracer of the engine's attention; None if it has none."""
        return self._layer.impl.tracer

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> Any:
        """Called by vLLM, with parameters of these names."""
        return self.batch(common_attn_metadata)

    @abstractmethod
    def batch(self, common: CommonAttentionMetadata) -> Any:
        """The work of this batch."""


class AnyBlocks(AttentionBackend):
    """A backend whose kernels take vLLM's blocks as they are, in either layout.

    A backend says under which `name` vLLM looks it up, what its attention is, and what prepares a
    batch for that.
    """

    name: ClassVar[str]
    attention: ClassVar[type[CausalAttention]]
    builder: ClassVar[type[BatchBuilder]]

    @classmethod
    def get_name(cls) -> str:
        """The name that vLLM knows it under."""
        return cls.name

    @classmethod
    def get_impl_cls(cls) -> type[CausalAttention]:
        """The attention itself."""
        return cls.attention

    @classmethod
    def get_builder_cls(cls) -> type[BatchBuilder]:
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

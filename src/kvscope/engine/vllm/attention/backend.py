"""The base classes of kvscope's attention backends: causal attention over blocks of any size."""

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
    """Attention of each token to itself and all tokens before it, without biases or caps.

    `tracer` records KV events and `checks` compares outputs with a reference; None if off.
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
            # Llama and OPT need none of these. A plan refuses other families with this attention;
            # what comes here nevertheless is not computed wrongly.
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
        """Called by vLLM with these parameter names: runs `write_and_attend` and the checks."""
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

        Shapes: `query` and `output` (tokens, heads, head size); `key` and `value` (tokens, KV
        heads, head size); `kv_cache` (blocks, KV heads, block size, 2 · head size). `batch` is what
        the builder's `batch` returned.
        """

    def do_kv_cache_update(
        self,
        layer: Any,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """vLLM's call to write K and V, (tokens, KV heads, head size), to `slot_mapping` (tokens).

        It records no events. By default, a token's K lies before its V.
        """
        size = kv_cache.shape[2]
        written = torch.cat((key, value), dim=-1)
        kv_cache[slot_mapping // size, :, slot_mapping % size] = written


class BatchBuilder(AttentionMetadataBuilder[Any]):
    """Converts vLLM's description of a batch to the kernels' work, once per forward pass."""

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
        """The tracer of the engine's attention, or None."""
        return self._layer.impl.tracer

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> Any:
        """Called by vLLM with these parameter names."""
        return self.batch(common_attn_metadata)

    @abstractmethod
    def batch(self, common: CommonAttentionMetadata) -> Any:
        """Make the work of a batch."""


class AnyBlocks(AttentionBackend):
    """Base class of backends whose kernels support any block size and both cache layouts.

    A subclass has the `name` that vLLM looks it up by, its `attention`, and the `builder` of its
    batches.
    """

    name: ClassVar[str]
    attention: ClassVar[type[CausalAttention]]
    builder: ClassVar[type[BatchBuilder]]

    @classmethod
    def get_name(cls) -> str:
        """The name that vLLM looks the backend up by."""
        return cls.name

    @classmethod
    def get_impl_cls(cls) -> type[CausalAttention]:
        """The class of the attention."""
        return cls.attention

    @classmethod
    def get_builder_cls(cls) -> type[BatchBuilder]:
        """The class that builds its batches."""
        return cls.builder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        """Any block size."""
        return [MultipleOf(1)]

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        """Layer by layer, or all layers of a block together."""
        return KVCacheLayout.LBHNC, KVCacheLayout.BLHNC

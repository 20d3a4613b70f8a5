"""The toy kind of KV group in vLLM: its spec, its manager of blocks, and a model that has it."""

from dataclasses import dataclass, fields
from typing import Any

from toy_sinks import SINK_BLOCKS  # type: ignore[import-not-found]
from vllm.model_executor.models import ModelRegistry
from vllm.model_executor.models.mistral import MistralForCausalLM
from vllm.v1.core.single_type_kv_cache_manager import SlidingWindowManager
from vllm.v1.kv_cache_interface import SlidingWindowSpec
from vllm.v1.kv_cache_spec_registry import register_kv_cache_spec


class SinksManager(SlidingWindowManager):
    """Keeps the first block of a request."""

    def remove_skipped_blocks(
        self, request_id: str, processed_computed_tokens: int, num_prompt_tokens: int | None = None
    ) -> None:
        """Free the blocks between the sinks and the window."""
        skipped = self.get_num_skipped_tokens(processed_computed_tokens) // self.block_size
        there = len(self.req_to_blocks[request_id])
        self._remove_blocks_in_range(request_id, SINK_BLOCKS, min(skipped, there))


@register_kv_cache_spec(manager_class=SinksManager)
@dataclass(frozen=True, kw_only=True)
class ToySinksSpec(SlidingWindowSpec):
    """State of a layer: the sinks and a window."""

    def max_admission_blocks_per_request(
        self, max_in_flight_tokens: int, max_model_len: int
    ) -> int:
        """Blocks of a window, and of the sinks."""
        of_window = super().max_admission_blocks_per_request(max_in_flight_tokens, max_model_len)
        return of_window + SINK_BLOCKS


class ToySinksForCausalLM(MistralForCausalLM):
    """A Mistral of which every other layer keeps sinks and a window, the others all tokens."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        layers = [module for module in self.modules() if hasattr(module, "get_kv_cache_spec")]
        for layer in layers[::2]:
            layer.get_kv_cache_spec = with_sinks(layer.get_kv_cache_spec)
        for layer in layers[1::2]:
            layer.sliding_window = None


def with_sinks(of_window: Any) -> Any:
    """A layer's method, whose spec has sinks, too."""

    def get_kv_cache_spec(config: Any) -> ToySinksSpec:
        spec = of_window(config)
        return ToySinksSpec(**{field.name: getattr(spec, field.name) for field in fields(spec)})

    return get_kv_cache_spec


def register() -> None:
    """Make vLLM know the model."""
    ModelRegistry.register_model("ToySinksForCausalLM", ToySinksForCausalLM)

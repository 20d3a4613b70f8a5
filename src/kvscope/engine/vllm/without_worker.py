"""Executors without a worker, and the layers of a model without weights for them."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from vllm.config import (
    ModelConfig,
    VllmConfig,
    get_layers_from_vllm_config,
    set_current_vllm_config,
)
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.utils.torch_utils import set_default_torch_dtype
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import AttentionSpec, KVCacheConfig, KVCacheSpec
from vllm.v1.worker.utils import customize_attention_spec


class WithoutWorker(Executor):
    """Base class of executors that allocate and compile nothing.

    vLLM's own class asks workers for the rest by `collective_rpc`, with arguments that differ
    between releases, as those of `set_kv_cache_layout` since 0.33: here nothing looks at them.
    """

    supported_tasks = ("generate",)

    def initialize_from_config(self, kv_cache_configs: list[KVCacheConfig]) -> None:
        """No-op: nothing is allocated."""

    def compile_or_warm_up_model(self) -> None:
        """No-op: nothing is compiled."""

    def check_health(self) -> None:
        """Always healthy."""

    def collective_rpc(self, *args: Any, **kwargs: Any) -> list[Any]:
        """No worker has an answer."""
        return [None]


READS = frozenset(("item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__"))


class OnesRead(TorchFunctionMode):
    """Within it, values that a model reads of tensors without storage while it is made are 1."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch, on ones where it would read what is not there."""
        if args and getattr(func, "__name__", "") in READS and args[0].is_meta:
            args = (torch.ones(args[0].shape, dtype=args[0].dtype, device="cpu"), *args[1:])
        return func(*args, **(kwargs or {}))


def built(config: VllmConfig, model_config: ModelConfig | None = None) -> torch.nn.Module:
    """The layers of the model, or of a draft model, as vLLM makes them, without weights.

    vLLM chooses attention backends by the number type that is PyTorch's default meanwhile.
    """
    number_type = (model_config or config.model_config).dtype
    with (
        set_current_vllm_config(config),
        set_default_torch_dtype(number_type),
        torch.device("meta"),
        OnesRead(),
    ):
        return initialize_model(vllm_config=config, model_config=model_config)


def kept_by_layers(config: VllmConfig) -> dict[str, KVCacheSpec]:
    """The KV cache specs of a model's layers, without layers that share another layer's cache."""
    specs = {}
    for name, layer in attention_layers(config):
        if getattr(layer, "kv_sharing_target_layer_name", None):
            continue
        if spec := layer.get_kv_cache_spec(config):
            if isinstance(spec, AttentionSpec):
                spec = customize_attention_spec(layer.get_attn_backend(), spec)
            specs[name] = spec
    return specs


def attention_layers(config: VllmConfig) -> Iterator[tuple[str, Any]]:
    """The attention layers of a model that has been built, by their names."""
    layers: dict[str, Any] = get_layers_from_vllm_config(config, AttentionLayerBase)
    yield from layers.items()

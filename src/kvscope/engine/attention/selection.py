"""Whose attention kernels the engine uses, and how its KV cache is laid out."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kvscope.engine.devices.platform import Platform
from kvscope.plan.experiment import Experiment

if TYPE_CHECKING:
    from kvscope.engine.attention.tracing import Tracing

# vLLM keeps layers apart unless it is told otherwise.
BY_BLOCK = "BLHNC"
LAYOUT_VARIABLE = "VLLM_KV_CACHE_LAYOUT"


@contextmanager
def chosen(platform: Platform, tracer: "Tracing | None" = None) -> Iterator[None]:
    """Make vLLM choose the experiment's attention and layout for engines built inside."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    from vllm.v1.attention.selector import _cached_get_attn_backend

    from kvscope.engine.attention.tracing import building_with

    hide_from_vllm()
    replaced, own = AttentionBackendEnum[platform.slot], platform.backend
    by_block = platform.experiment.cache.layout == "by_block"
    before = os.environ.get(LAYOUT_VARIABLE)
    if own:
        register_backend(replaced, own)
    if by_block:
        os.environ[LAYOUT_VARIABLE] = BY_BLOCK
    _cached_get_attn_backend.cache_clear()
    try:
        with building_with(tracer):
            yield
    finally:
        if own:
            replaced.clear_override()
        if by_block:
            os.environ.pop(LAYOUT_VARIABLE)
            if before is not None:
                os.environ[LAYOUT_VARIABLE] = before
        _cached_get_attn_backend.cache_clear()


def layers_with_checks(model: Any) -> list[Any]:
    """The attention of each layer whose outputs can be checked: kvscope's own on a CPU."""
    found = [getattr(module, "impl", None) for module in model.modules()]
    return [attention for attention in found if hasattr(attention, "gathered")]


def hide_from_vllm() -> None:
    """Let vLLM start a worker although Numba is loaded.

    Where it finds no Triton, its worker looks into every object of every module for kernels, by
    `vars`. llvmlite's library answers that with a function, as it does any name, and vLLM stumbles.
    """
    if "llvmlite.binding.ffi" not in sys.modules:
        return
    wrapper = type(sys.modules["llvmlite.binding.ffi"].lib)
    found = wrapper.__getattr__
    if found.__name__ != "_ordinary":

        def _ordinary(self: Any, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return found(self, name)

        wrapper.__getattr__ = _ordinary


def check_layout(experiment: Experiment) -> None:
    """Raise RuntimeError if vLLM laid the cache out in another way than the experiment asks.

    Seen only where a host pool looks at the cache: elsewhere nothing depends on it.
    """
    from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

    pieces = get_kv_transfer_group().pieces if has_kv_transfer_group() else None
    whole = experiment.cache.layout == "by_block" or experiment.model.layers == 1
    if pieces is not None and whole != (pieces == 1):
        raise RuntimeError(
            f"cache.layout is {experiment.cache.layout}, but a block lies in {pieces} pieces"
        )

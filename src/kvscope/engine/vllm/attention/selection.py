"""Selects the attention backend of an engine and the layout of its KV cache."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kvscope.engine.vllm.connectors.worker import worker_tier
from kvscope.plan.experiment import Experiment
from kvscope.tables.kv_group import KvGroup
from kvscope.tables.kv_plan import layers_apart

if TYPE_CHECKING:
    from kvscope.engine.devices.platform import Platform
    from kvscope.engine.vllm.attention.backend import CausalAttention

BY_BLOCK = "BLHNC"  # by default, vLLM keeps layers apart
LAYOUT_VARIABLE = "VLLM_KV_CACHE_LAYOUT"


@contextmanager
def select_attention(platform: "Platform") -> Iterator[None]:
    """Within the context, vLLM builds engines with the experiment's attention and layout."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    from vllm.v1.attention.selector import _cached_get_attn_backend

    hide_llvmlite()
    replaced, backend = AttentionBackendEnum[platform.slot], platform.backend
    by_block = platform.experiment.cache.layout == "by_block"
    before = os.environ.get(LAYOUT_VARIABLE)
    if backend:
        register_backend(replaced, backend)
    if by_block:
        os.environ[LAYOUT_VARIABLE] = BY_BLOCK
    _cached_get_attn_backend.cache_clear()
    try:
        yield
    finally:
        if backend:
            replaced.clear_override()
        if by_block:
            os.environ.pop(LAYOUT_VARIABLE)
            if before is not None:
                os.environ[LAYOUT_VARIABLE] = before
        _cached_get_attn_backend.cache_clear()


def find_own_attention(model: Any) -> "list[CausalAttention]":
    """kvscope's attention of each layer of a model; empty if the model uses vLLM's."""
    from kvscope.engine.vllm.attention.backend import CausalAttention

    modules = [getattr(module, "impl", None) for module in model.modules()]
    return [attention for attention in modules if isinstance(attention, CausalAttention)]


def hide_llvmlite() -> None:
    """Make llvmlite's library raise AttributeError for special names, as vLLM expects.

    Without Triton, vLLM's worker searches every object of every module for kernels with `vars`.
    llvmlite's library returns a function for any attribute, including __dict__, and vLLM fails.
    """
    if "llvmlite.binding.ffi" not in sys.modules:
        return
    wrapper = type(sys.modules["llvmlite.binding.ffi"].lib)
    original = wrapper.__getattr__
    if original.__name__ != "_ordinary":

        def _ordinary(self: Any, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return original(self, name)

        wrapper.__getattr__ = _ordinary


def check_layout(experiment: Experiment, groups: Sequence[KvGroup]) -> None:
    """Raise RuntimeError if vLLM's layout of the cache is not that of the experiment.

    Only checked with a host pool, which counts the pieces of a block; nothing else depends on it.
    """
    pieces = worker_tier().pieces
    whole = experiment.cache.layout == "by_block" or layers_apart(groups) == 1
    if pieces is not None and whole != (pieces == 1):
        raise RuntimeError(
            f"cache.layout is {experiment.cache.layout}, but a block lies in {pieces} pieces"
        )

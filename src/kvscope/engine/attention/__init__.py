"""Whose attention kernels the engine uses, and how its KV cache is laid out."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvscope.plan.experiment import Experiment

if TYPE_CHECKING:
    from kvscope.engine.attention.tracing import Tracing

# vLLM keeps layers apart unless it is told otherwise.
BY_BLOCK = "BLHNC"
LAYOUT_VARIABLE = "VLLM_KV_CACHE_LAYOUT"


# By device and engine.attention; vLLM's own is not replaced.
BACKENDS = {
    ("cpu", "paged"): "kvscope.engine.attention.paged.PagedBackend",
    ("cpu", "instrumented"): "kvscope.engine.attention.numba_attention.NumbaBackend",
    ("cuda", "instrumented"): "kvscope.engine.attention.cuda.CudaBackend",
}


@contextmanager
def chosen(experiment: Experiment, tracer: "Tracing | None" = None) -> Iterator[None]:
    """Make vLLM choose the experiment's attention and layout for engines built inside.

    On a CPU vLLM takes its CPU backend whatever is asked for, so ours is put in its place.
    """
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    from vllm.v1.attention.selector import _cached_get_attn_backend

    from kvscope.engine.attention.tracing import building_with

    hide_from_vllm()
    device = experiment.device.name
    replaced = AttentionBackendEnum.CPU_ATTN if device == "cpu" else AttentionBackendEnum.CUSTOM
    own = BACKENDS.get((device, experiment.engine.attention))
    by_block = experiment.cache.layout == "by_block"
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


def tracer_for(experiment: Experiment, directory: Path) -> "Tracing":
    """The tracer of an experiment; a file in `directory` takes the events as they come."""
    if experiment.device.name == "cuda":
        from kvscope.engine.attention import gpu_clock
        from kvscope.engine.attention.gpu_tracer import GpuTracer

        return GpuTracer(experiment, directory, gpu_clock)
    import numba

    from kvscope.engine.attention import clock
    from kvscope.engine.attention.tracer import Tracer

    return Tracer(experiment, numba.get_num_threads(), directory, clock)


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

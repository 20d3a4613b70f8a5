"""Whose attention kernels the engine uses, and how its KV cache is laid out."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from kvscope.plan.experiment import Experiment

# vLLM keeps layers apart unless it is told otherwise.
BY_BLOCK = "BLHNC"
LAYOUT_VARIABLE = "VLLM_KV_CACHE_LAYOUT"


@contextmanager
def chosen(experiment: Experiment) -> Iterator[None]:
    """Make vLLM choose the experiment's attention and layout for engines built inside.

    On a CPU vLLM takes its CPU backend whatever is asked for, so ours is put in its place.
    """
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    from vllm.v1.attention.selector import _cached_get_attn_backend

    own = experiment.engine.attention == "paged"
    by_block = experiment.cache.layout == "by_block"
    before = os.environ.get(LAYOUT_VARIABLE)
    if own:
        register_backend(
            AttentionBackendEnum.CPU_ATTN, "kvscope.engine.attention.paged.PagedBackend"
        )
    if by_block:
        os.environ[LAYOUT_VARIABLE] = BY_BLOCK
    _cached_get_attn_backend.cache_clear()
    try:
        yield
    finally:
        if own:
            AttentionBackendEnum.CPU_ATTN.clear_override()
        if by_block:
            os.environ.pop(LAYOUT_VARIABLE)
            if before is not None:
                os.environ[LAYOUT_VARIABLE] = before
        _cached_get_attn_backend.cache_clear()


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

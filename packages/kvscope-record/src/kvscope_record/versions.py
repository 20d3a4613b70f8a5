"""Which versions of vLLM can be recorded, and what the older ones of them call otherwise.

What is not named here is the same in all: the recorder uses it as it is.
"""

from types import SimpleNamespace
from typing import Any

SUPPORTED = ("0.27", "0.28", "0.29", "0.30", "0.31", "0.32")
"""Releases that tests/engine/test_record.py records; envs/vllm.txt pins those before the last."""


def problem(version: str) -> str | None:
    """Why a version of vLLM cannot be recorded, in one sentence; None if it can."""
    if ".".join(version.split(".")[:2]) in SUPPORTED:
        return None
    return f"vLLM {version} cannot be recorded: kvscope records vLLM {', '.join(SUPPORTED)}"


def described_as_now(cache: Any) -> Any:
    """The `KVCacheConfig` of any version, as far as `groups_of` reads it, as the last describes it.

    Until 0.28 a tensor is an allocation of its own, unless blocks are packed; now it is a part of
    one for all. Until 0.29 no group is on the host.
    """
    tensors = cache.kv_cache_tensors
    if tensors and hasattr(tensors[0], "shared_by") and not tensors[0].block_stride:
        tensors = [SimpleNamespace(size=sum(tensor.size for tensor in tensors))]
    groups = [
        SimpleNamespace(
            kv_cache_spec=group.kv_cache_spec,
            layer_names=group.layer_names,
            host_resident=getattr(group, "host_resident", False),
        )
        for group in cache.kv_cache_groups
    ]
    return SimpleNamespace(
        num_blocks=cache.num_blocks, kv_cache_tensors=tensors, kv_cache_groups=groups
    )

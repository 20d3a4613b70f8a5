"""The releases of vLLM that kvscope supports, the uses of each, and the differences between them.

What is not named here is the same in all, and used as it is. Only the standard library is imported
with this module.
"""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple


class Uses(NamedTuple):
    """Uses that a release has been tested for."""

    recordings: bool
    """`kvscope record` records its servers: `make test-versions`."""
    schedules: bool = False
    """Schedules without a worker: on devices that compute nothing, and for `kvscope bytes`."""
    engines: bool = False
    """Runs on every device: `envs/cpu.txt` and `envs/cuda.txt` pin it."""


RELEASES: Mapping[str, Uses] = {
    **dict.fromkeys(("0.27", "0.28", "0.29", "0.30", "0.31"), Uses(recordings=True)),
    "0.32": Uses(recordings=True, schedules=True, engines=True),
    "0.33": Uses(recordings=True, schedules=True),
}
"""Releases of vLLM, oldest first; `envs/vllm.txt` pins those that the environment does not have."""

RECORDED = tuple(name for name, uses in RELEASES.items() if uses.recordings)
SCHEDULING = tuple(name for name, uses in RELEASES.items() if uses.schedules)
ENGINES = tuple(name for name, uses in RELEASES.items() if uses.engines)


def unless_recorded(version: str) -> str | None:
    """Why servers of a version of vLLM cannot be recorded, in one sentence; None if they can."""
    if _release(version) in RECORDED:
        return None
    return f"vLLM {version} cannot be recorded: kvscope records vLLM {', '.join(RECORDED)}"


def unless_scheduling(version: str) -> str | None:
    """Why a version of vLLM cannot schedule without a worker, in one sentence; None if it can."""
    if _release(version) in SCHEDULING:
        return None
    return f"kvscope does not run on vLLM {version} but on {', '.join(SCHEDULING)}; {_REMEDY}"


def unless_engine(version: str) -> str | None:
    """Why a version of vLLM cannot be the engine of any device, in one sentence; None if it can."""
    if _release(version) in ENGINES:
        return None
    if unless_scheduling(version) is None:
        return (
            f"on vLLM {version} kvscope runs devices without a worker alone, as device=dry and "
            f"device=modeled; others need vLLM {', '.join(ENGINES)}, and {_REMEDY}"
        )
    return unless_scheduling(version)


_REMEDY = f"`make env` installs {ENGINES[-1]}"


def _release(version: str) -> str:
    """The release of a version: its first two numbers."""
    return ".".join(version.split(".")[:2])


def imported() -> str:
    """The version of the vLLM that this process imports."""
    # Imported here because vLLM loads plugins while it is being imported itself.
    from vllm.version import __version__

    return str(__version__)


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

"""Differences between devices: no rule of a CPU holds on a GPU, and the reverse.

One row a place where a device differs, with what it is on the CPU and what it is on a GPU.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvscope.engine.devices.platform import Platform, platform_of
from kvscope.plan import together
from kvscope.plan.experiment import Experiment
from kvscope.plan.grid import expand
from kvscope.plan.resources import resources
from kvscope.run import profiled
from kvscope.run.environment import measured_environment

CONFIG = Path(__file__).parents[2] / "config"
SWAP = ("overflow=swap", "overflow.host_gib=1", "profiler=none")
AMPLE_MIB = 1e9


@dataclass(frozen=True)
class Place:
    """A place that asks the device, and what the answers are."""

    what: str
    asked: Callable[[Platform, Experiment], Any]
    cpu: Any
    cuda: Any


def visible(_: Platform, experiment: Experiment) -> str | None:
    """CUDA_VISIBLE_DEVICES of the measured process for that of a pack."""
    source = {"CUDA_VISIBLE_DEVICES": "3"}
    return measured_environment(experiment, source).get("CUDA_VISIBLE_DEVICES")


def passed_on(*names: str) -> Callable[[Platform, Experiment], list[str]]:
    """Variables among these that reach the measured process."""

    def found(_: Platform, experiment: Experiment) -> list[str]:
        environment = measured_environment(experiment, dict.fromkeys(names, "x"))
        return [name for name in names if environment.get(name) == "x"]

    return found


def side_by_side(_: Platform, experiment: Experiment) -> str:
    """How two engines are measured together if memory is no limit."""
    words = [f"device={experiment.device.name}", *SWAP, "cache.blocks=300"]
    (other,) = expand(None, words, CONFIG).experiments
    return together.design([experiment, other.experiment], AMPLE_MIB).name


NEEDED = (
    *("TRITON_CACHE_DIR", "TRITON_LIBCUDA_PATH", "TRITON_PTXAS_PATH", "CC", "CUDA_HOME"),
    *("CUDA_CACHE_PATH", "CUDA_MPS_PIPE_DIRECTORY", "PYTORCH_ALLOC_CONF", "GLOO_SOCKET_IFNAME"),
    *("CUDA_DEVICE_ORDER", "PYTORCH_CUDA_ALLOC_CONF", "CUDA_DEVICE_MAX_CONNECTIONS"),
)

PLACES = [
    Place(
        "the worker that forks share",
        lambda p, e: p.worker_modules,
        ("vllm.v1.worker.cpu_worker",),
        ("vllm.v1.worker.gpu_worker",),
    ),
    Place(
        "what nsys traces",
        lambda p, e: p.profiler_options,
        ("--trace=nvtx",),
        ("--trace=cuda,nvtx", "--cuda-graph-trace=node"),
    ),
    Place("the clock of copies", lambda p, e: p.copy_clock, "host", "device"),
    Place("whether copies end with their call", lambda p, e: e.device.copies_awaited, True, False),
    Place(
        "whether the cache's bytes are given, or what the GPU has is asked",
        lambda p, e: "kv_cache_memory_bytes" in p.engine_arguments(),
        True,
        False,
    ),
    Place("which GPUs the process sees, of a pack's third", visible, "", "3"),
    Place("what the environment passes on", passed_on(*NEEDED), [*NEEDED], [*NEEDED]),
    Place("how two engines stand", side_by_side, together.ROUNDS, together.SITTINGS),
    Place("engines under the profiler at a time", lambda p, e: profiled.at_a_time(e), 2, 1),
    Place("GPUs that a batch system is asked for", lambda p, e: resources(e)["gpus"], 0, 1),
    Place(
        "whether the cache is in the host's memory",
        lambda p, e: e.device.memory_bytes(e) > e.cache_blocks * e.block_bytes,
        True,
        False,
    ),
    Place("where vLLM has kvscope's attention", lambda p, e: p.slot, "CPU_ATTN", "CUSTOM"),
]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.what)
def test_it_is_the_devices(place: Place, device: str):
    (planned,) = expand(None, [f"device={device}", *SWAP], CONFIG).experiments
    platform = platform_of(planned.experiment)
    assert place.asked(platform, planned.experiment) == getattr(place, device)

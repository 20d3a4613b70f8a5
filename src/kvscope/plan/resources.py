"""The resources of a run (CPU threads, host memory, GPUs), and this machine's memory."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kvscope.base.errors import BadInput
from kvscope.base.machine import memory_bytes, system_text
from kvscope.plan.fields import GIB
from kvscope.plan.work import expected_work

if TYPE_CHECKING:
    from kvscope.plan.experiment import Experiment

MIB = 2**20
# Memory of the engine's process beside the experiment's data: Python, PyTorch and vLLM. The first
# is a generous upper bound, since a batch system kills a job that exceeds its request. The second
# is the lowest observed value, so that no run is refused that could succeed.
PROCESS_MIB = 4096
LEAST_PROCESS_MIB = 768
# Memory of the process that imports vLLM, most of which its forks share, and of an engine's fork
# beside its cache, weights and records: 590 MiB and 190 to 300 MiB were measured.
ZYGOTE_MIB, PARKED_MIB = 800, 320
# Memory of the records of one output token; 2.4 KiB were measured.
RECORD_BYTES = 2560
TOKEN_ID_BYTES = 4


def resources(experiment: "Experiment") -> dict[str, int]:
    """The resources to request from a batch system: `threads`, `memory_mib` (host), `gpus`, and
    whether it must have a node alone (`exclusive`); `parked_mib` is its engine's part of a
    campaign's memory.

    BadInput if a workload's file cannot be used.
    """
    device = experiment.device
    loading_mib = -(-device.loading_bytes(experiment) // MIB)
    return {
        "threads": device.threads,
        "memory_mib": PROCESS_MIB + required_mib(experiment) + loading_mib,
        "parked_mib": PARKED_MIB + required_mib(experiment),
        "gpus": device.gpus,
        "exclusive": int(experiment.exclusive),
        "batch": int(not device.allocates),  # it may share its process with others
    }


def required_mib(experiment: "Experiment") -> int:
    """MiB of host memory for weights, cache, host pool, requests and records of a run."""
    bytes_ = 0
    if experiment.device.allocates:
        bytes_ += experiment.overflow.pool_bytes(experiment)
        bytes_ += experiment.device.memory_bytes(experiment)
    expected = expected_work(experiment)
    bytes_ += int(expected.prompt_tokens * TOKEN_ID_BYTES + expected.output_tokens * RECORD_BYTES)
    return -(-(bytes_ + experiment.tracing.buffer_bytes) // MIB)


def minimum_gib(experiment: "Experiment") -> float:
    """GiB of host memory that a run needs at least."""
    return (LEAST_PROCESS_MIB + required_mib(experiment)) * MIB / GIB


def machine_gib() -> float:
    """GiB of memory available to a process here: of the machine, or of its control group."""
    return min([memory_bytes(), *group_limits()]) / GIB


def check_memory(experiment: "Experiment") -> None:
    """Raise BadInput if this machine has too little memory for a run of the experiment."""
    least, available = minimum_gib(experiment), machine_gib()
    if least > available:
        raise BadInput(
            f"{experiment.id} needs {least:,.1f} GiB of memory and this machine has "
            f"{available:,.1f} GiB; run it on one that has more, or change model, cache, overflow "
            "or workload"
        )


def group_limits(
    proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> Iterator[int]:
    """Memory limits in bytes of this process's control groups, of version 1 and 2, if any.

    A batch system or a container sets them; on a machine of one's own there is none.
    """
    for line in system_text(proc).splitlines():
        _, _, entry = line.partition(":")
        controllers, separator, group = entry.partition(":")
        if separator and (not controllers or "memory" in controllers.split(",")):
            mount, name = (
                (root / "memory", "memory.limit_in_bytes") if controllers else (root, "memory.max")
            )
            inner = mount / group.lstrip("/")
            for directory in (inner, *inner.parents):
                text = system_text(directory / name).strip()
                if text.isdecimal():  # and not 'max'
                    yield int(text)

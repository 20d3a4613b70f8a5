"""Memory and disk that experiments on a GPU need, estimated before anything runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvscope.plan.gpu_estimate import is_tight
from kvscope.plan.gpu_memory import GpuMemory, gib_text
from kvscope.plan.tracing import events_on_disk
from kvscope.plan.walltime import expected_repeats

if TYPE_CHECKING:
    from kvscope.plan.experiment import Experiment

PINNED = "pinned"


@dataclass(frozen=True)
class GpuNeeds:
    """Memory and disk that one experiment needs; `plan.resources` has its time and host memory."""

    hardware: str | None  # the GPU that is named
    usable_bytes: int | None  # of its memory
    memory: GpuMemory
    host_pool_bytes: int
    host_memory: str  # of the pool: 'pinned' or 'pageable'
    spool_bytes: int  # on disk while a repeat's events are recorded
    stored_bytes: int  # the events of all repeats, as they are kept

    @classmethod
    def of(cls, experiment: "Experiment") -> "GpuNeeds | None":
        """The needs of an experiment; None on a device whose GPU memory is not planned."""
        device, overflow = experiment.device, experiment.overflow
        memory = device.gpu_memory(experiment)
        if memory is None:
            return None
        events = events_on_disk(experiment)
        return cls(
            hardware=getattr(device, "hardware", None),
            usable_bytes=device.usable_bytes,
            memory=memory,
            host_pool_bytes=overflow.pool_bytes(experiment),
            host_memory=getattr(overflow, "host_memory", PINNED),  # vLLM's own pins its pool
            spool_bytes=events.spool_bytes,
            stored_bytes=round(events.stored_bytes * expected_repeats(experiment)),
        )

    @property
    def kv_event_bytes(self) -> int:
        """Disk of the events at most: while they are read, they are there in both forms."""
        return self.spool_bytes + self.stored_bytes

    def as_json(self) -> dict[str, Any]:
        """The numbers, in bytes."""
        return {
            "hardware": self.hardware,
            "gpu_usable_bytes": self.usable_bytes,
            "gpu_memory_bytes": self.memory.total_bytes,
            **{f"gpu_{name}": size for name, size in vars(self.memory).items()},
            "host_pool_bytes": self.host_pool_bytes,
            "host_memory": self.host_memory,
            "kv_event_bytes": self.kv_event_bytes,
        }


def in_words(needs: Sequence[GpuNeeds]) -> str:
    """The needs of experiments that run one after another: memory of the largest, disk of all.

    'needs 14.9 GiB of GPU memory (weights 12.6, …), 4.0 GiB of pinned host memory, 1.2 GiB of disk
    for KV events; fits a100-40gb (38.7 GiB usable)'.
    """
    largest = max((need.memory for need in needs), key=lambda memory: memory.total_bytes)
    parts = [f"needs {gib(largest.total_bytes)} of GPU memory ({largest.words})"]
    pool = max(needs, key=lambda need: need.host_pool_bytes)
    if pool.host_pool_bytes:
        parts.append(f"{gib(pool.host_pool_bytes)} of {pool.host_memory} host memory")
    if disk := sum(need.stored_bytes for need in needs) + max(need.spool_bytes for need in needs):
        parts.append(f"{gib(disk)} of disk for KV events")
    return f"{', '.join(parts)}; {_verdict(needs)}"


def _verdict(needs: Sequence[GpuNeeds]) -> str:
    """Whether it fits the GPU that is named; what does not is refused before."""
    named = {need.hardware: need.usable_bytes for need in needs if need.usable_bytes is not None}
    if not named:
        return "device.hardware=NAME says whether it fits a GPU"
    most = max(need.memory.total_bytes for need in needs)
    return "fits " + " and ".join(
        f"{name} ({'tightly: ' if is_tight(name, most) else ''}{gib(usable)} usable)"
        for name, usable in named.items()
        if name
    )


def gib(size_bytes: int) -> str:
    """'14.9 GiB'."""
    return f"{gib_text(size_bytes)} GiB"

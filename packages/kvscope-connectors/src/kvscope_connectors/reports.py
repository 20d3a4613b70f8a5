"""Reports of the worker's half of vLLM's connector on the jobs that have ended."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingWorkerMetadata,
)

from kvscope.api.tables import copies


@dataclass(frozen=True)
class Copied:
    """A job that has ended. Times in ns of the platform's clock, as of `rows.Transfer`."""

    number: int
    bytes: int
    start_ns: int
    end_ns: int
    seconds: Callable[[], float]
    clock: str = copies.HOST_CLOCK


@dataclass
class NativeReport(OffloadingWorkerMetadata):
    """vLLM's report of ended jobs, with their measured copies."""

    copied: list[Copied] = field(default_factory=list)

    def aggregate(self, other: Any) -> "NativeReport":
        """Merged report of two workers."""
        both = super().aggregate(other)
        assert isinstance(both, OffloadingWorkerMetadata)
        copied = self.copied + other.copied
        return NativeReport(both.completed_jobs, both.transfer_stats, copied)

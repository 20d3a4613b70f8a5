"""The clock that kernels stamp events with, and its calibration against the host's clock."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from time import perf_counter_ns
from typing import Any, ClassVar

TRIES = 50  # of one sample


@dataclass(frozen=True)
class ClockSample:
    """One instant on both clocks, with the uncertainty of reading them at the same time."""

    ticks: int
    host_ns: int  # host monotonic clock
    uncertainty_ns: int


class TickClock(ABC):
    """A clock that kernels read and that counts ticks of constant length."""

    name: ClassVar[str]

    @abstractmethod
    def read(self) -> Any:
        """The clock now; `int` makes ticks of it."""

    @abstractmethod
    def resolution_ns(self, ns_per_tick: float) -> float:
        """The step between readings."""

    def sample(self) -> ClockSample:
        """Read both clocks TRIES times; returns the reading with the least uncertainty."""
        tries = []
        for _ in range(TRIES):
            before = perf_counter_ns()
            seen = self.read()
            after = perf_counter_ns()
            tries.append(ClockSample(int(seen), (before + after) // 2, -(-(after - before) // 2)))
        return min(tries, key=lambda sample: sample.uncertainty_ns)

    def facts(self, samples: Sequence[ClockSample], start_ns: int) -> dict[str, Any]:
        """The entry of run.json; `start_ns` is the run's start on the host's clock."""
        first, last = samples[0], samples[-1] if len(samples) > 1 else self.sample()
        ns_per_tick = (last.host_ns - first.host_ns) / (last.ticks - first.ticks)
        return {
            "name": self.name,
            "ns_per_tick": ns_per_tick,
            "resolution_ns": self.resolution_ns(ns_per_tick),
            "samples": [
                asdict(sample) | {"host_ns": sample.host_ns - start_ns} for sample in samples
            ],
        }

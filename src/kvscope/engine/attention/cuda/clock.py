"""A GPU's timer (`%globaltimer`, ns), and how it relates to the host's clock.

The timer counts nanoseconds but may move in steps of up to a microsecond. So kernels stamp events
with their SM's own clock, and each segment has the timer's time at its start and its end.
"""

from dataclasses import asdict, dataclass
from functools import cache
from time import perf_counter_ns
from typing import Any

import torch

from kvscope.engine.attention.cuda.instrument import read_timer_often
from kvscope.engine.attention.cuda.launch import CLOCK as KIND

NAME = "globaltimer"
TRIES = 20
READINGS = 4096


@dataclass(frozen=True)
class Sample:
    """One instant on both clocks, and how far apart they may be read."""

    ticks: int
    host_ns: int  # host monotonic clock
    uncertainty_ns: int


def _read(out: torch.Tensor, counter: torch.Tensor) -> None:
    read_timer_often[(1,)](out, counter, len(out), CLOCK=KIND, num_warps=1)


@cache
def resolution_ns(device: torch.device | str = "cuda") -> int:
    """The timer's step: the least difference between two readings that differ."""
    out = torch.empty(READINGS, dtype=torch.int64, device=device)
    _read(out, torch.zeros(1, dtype=torch.int64, device=device))
    steps = out.diff()
    return int(steps[steps > 0].min())


def sample(device: torch.device | str = "cuda") -> Sample:
    """One instant on both clocks: the closest of some tries, the device idle before each."""
    out = torch.empty(1, dtype=torch.int64, device=device)
    counter = torch.zeros(1, dtype=torch.int64, device=device)

    def synchronize() -> None:
        if out.is_cuda:
            torch.cuda.synchronize(device)

    _read(out, counter)  # compiles the kernel
    resolution_ns(device)  # while the device works: what is said of a failed run needs it
    tries = []
    for _ in range(TRIES):
        synchronize()
        before = perf_counter_ns()
        _read(out, counter)
        synchronize()
        after = perf_counter_ns()
        tries.append(Sample(int(out), (before + after) // 2, -(-(after - before) // 2)))
    return min(tries, key=lambda one: one.uncertainty_ns)


def described(samples: list[Sample], start_ns: int) -> dict[str, Any]:
    """The clock as run.json has it; `start_ns` is the run's start on the host's clock."""
    first, last = samples[0], samples[-1] if len(samples) > 1 else sample()
    return {
        "name": NAME,
        "ns_per_tick": (last.host_ns - first.host_ns) / (last.ticks - first.ticks),
        "resolution_ns": resolution_ns(),
        "samples": [asdict(one) | {"host_ns": one.host_ns - start_ns} for one in samples],
    }

"""A GPU's timer (`%globaltimer`, ns), and how the host reads it.

The timer counts nanoseconds but may move in steps of up to a microsecond. So kernels stamp events
with their SM's own clock, and each segment has the timer's time at its start and its end.
"""

from functools import cached_property

import torch

from kvscope_kernels.engine.clock import ClockSample, TickClock
from kvscope_kernels.engine.cuda.instrument import read_timer_often
from kvscope_kernels.engine.cuda.launch import CLOCK

READINGS = 4096


class CudaClock(TickClock):
    """The timer of a device."""

    name = "globaltimer"

    def __init__(self, device: torch.device | str = "cuda") -> None:
        self.device = torch.device(device)
        self._seen = torch.empty(READINGS, dtype=torch.int64, device=device)
        self._first = self._seen[:1]
        self._counter = torch.zeros(1, dtype=torch.int64, device=device)

    @cached_property
    def _step_ns(self) -> int:
        """The least difference between two readings that differ."""
        self._launch(READINGS)
        steps = self._seen.diff()
        return int(steps[steps > 0].min())

    def resolution_ns(self, ns_per_tick: float) -> float:
        """The step between readings of the timer."""
        return self._step_ns

    def read(self) -> torch.Tensor:
        """The timer now, (1,) int64 on the device, which is idle afterwards."""
        self._launch(1)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return self._first

    def sample(self) -> ClockSample:
        """One instant on both clocks: the closest of some tries, the device idle before each."""
        self.resolution_ns(1)  # while the device works: the facts of a failed run need it
        self.read()  # compiles the kernel, and waits for what was launched
        return super().sample()

    def _launch(self, count: int) -> None:
        read_timer_often[(1,)](self._seen, self._counter, count, CLOCK=CLOCK, num_warps=1)

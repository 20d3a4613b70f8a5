"""The link between a virtual device and its host, on which copies take virtual time."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvscope.engine.devices.virtual.clock import VirtualClock
    from kvscope.engine.devices.virtual.costs import Costs


class Link:
    """The link of one engine, its clock and the `costs` of its copies."""

    def __init__(self, clock: "VirtualClock", costs: "Costs") -> None:
        self.clock, self.costs = clock, costs
        self._free_ns = 0  # what was copied behind a pass has crossed the link

    def begin_ns(self) -> int:
        """Wait until the link is free; returns the time, at which a copy may begin."""
        self.clock.wait(max(0, self._free_ns - self.clock.now_ns()) * 1e-9)
        return self.clock.now_ns()

    def copy(self, seconds: float) -> None:
        """Copy for so long; the host waits if its memory is not page-locked."""
        if self.costs.pageable:
            self.clock.wait(seconds)
        else:
            begin_ns = max(self.clock.now_ns(), self._free_ns)
            self._free_ns = begin_ns + round(seconds * 1e9)

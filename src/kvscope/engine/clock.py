"""The clock that scheduler, layer timer, serving loop and copies read: a platform has one."""

import time
from typing import Protocol


class Clock(Protocol):
    """Time, and waiting for it; one that is modeled moves only as the model says."""

    def now_ns(self) -> int:
        """Nanoseconds since some instant; never less than before."""

    def wait(self, seconds: float) -> None:
        """Let so many seconds pass, at least 0."""


class HostClock:
    """The host's monotonic clock."""

    now_ns = staticmethod(time.perf_counter_ns)
    wait = staticmethod(time.sleep)

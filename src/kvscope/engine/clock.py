"""The clock of a platform, read by scheduler, layer timer, serving loop and copies."""

import time
from typing import Protocol


class Clock(Protocol):
    """A clock that can be read and waited on; a modeled clock advances by modeled costs only."""

    def now_ns(self) -> int:
        """Nanoseconds since an arbitrary instant; monotonic."""

    def wait(self, seconds: float) -> None:
        """Wait for a number of seconds, at least 0."""


class HostClock:
    """The host's monotonic clock."""

    now_ns = staticmethod(time.perf_counter_ns)
    wait = staticmethod(time.sleep)

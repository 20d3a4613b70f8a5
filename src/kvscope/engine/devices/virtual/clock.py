"""A clock that moves only by modeled durations."""


class VirtualClock:
    """Nanoseconds since the engine was made."""

    def __init__(self) -> None:
        self._ns = 0

    def now_ns(self) -> int:
        """The virtual time, ns since the engine was made."""
        return self._ns

    def wait(self, seconds: float) -> None:
        """Let so many seconds pass, rounded up, so that the awaited event has happened."""
        self._ns += -int(-seconds * 1e9 // 1)

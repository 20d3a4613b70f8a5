"""The progress of a measured process, in output tokens, which it tells now and then."""

import time
from collections.abc import Callable

SECONDS_BETWEEN_WORDS = 0.25

Tell = Callable[[str, float], None]
"""Takes a phase of a run, and the share of it that is done."""


def ignore(_phase: str, _share: float) -> None:
    """Show no progress."""


class Progress:
    """Counts the output tokens of a phase, and tells how many there are a few times a second."""

    def __init__(self, tell: Tell = ignore) -> None:
        self._tell = tell
        self._phase = ""
        self._total = self._done = 0
        self._told_s = 0.0

    def begin(self, phase: str, total: int = 0) -> None:
        """Begin a phase of so many output tokens, 0 if it has none."""
        self._phase, self._total, self._done = phase, total, 0
        self._say()

    def advance(self, tokens: int) -> None:
        """Count generated output tokens."""
        self._done += tokens
        if time.monotonic() - self._told_s > SECONDS_BETWEEN_WORDS:
            self._say()

    def _say(self) -> None:
        self._told_s = time.monotonic()
        self._tell(self._phase, self._done / self._total if self._total else 0.0)

"""The progress of a run, which the measured process writes to a small file for its supervisor.

A file works through a profiler between the two processes, and a few writes per second do not affect
the measurement.
"""

import json
import time
from pathlib import Path

PROGRESS_FILE = ".progress.json"
SECONDS_BETWEEN_WRITES = 0.25


class Progress:
    """The measured process's side: counts output tokens, warm-up included."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / PROGRESS_FILE
        self._total = self._done = 0
        self._phase = ""
        self._written = 0.0

    def begin(self, total: int, phase: str) -> None:
        """Start with `total` expected output tokens."""
        self._total, self._phase = total, phase
        self._write()

    def add_total(self, tokens: int) -> None:
        """Increase the expected output tokens."""
        self._total += tokens

    def phase(self, phase: str) -> None:
        """Begin a new phase of the run."""
        self._phase = phase
        self._write()

    def advance(self, tokens: int) -> None:
        """Count generated output tokens."""
        self._done += tokens
        if time.monotonic() - self._written > SECONDS_BETWEEN_WRITES:
            self._write()

    def _write(self) -> None:
        self._written = time.monotonic()
        state = {"done": self._done, "total": self._total, "phase": self._phase}
        # Renamed into place, so that the reader never sees a partial file; fsync is not needed.
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps(state), encoding="utf-8")
        temporary.replace(self._path)


def read_progress(directory: Path) -> tuple[int, int, str]:
    """(tokens done, expected tokens, phase) as last written; zeros before the first write."""
    path = directory / PROGRESS_FILE
    if not path.exists():
        return 0, 0, "starting"
    state = json.loads(path.read_text(encoding="utf-8"))
    return state["done"], state["total"], state["phase"]

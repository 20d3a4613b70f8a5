"""How far a run is: written by the measured process to a small file, shown by its parent.

A file reaches the parent through whatever stands between the two (a profiler), and writing it
a few times a second costs the measurement nothing.
"""

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvscope.run.locks import SUPERVISOR_LOCK, is_free

PROGRESS_FILE = ".progress.json"
SECONDS_BETWEEN_WRITES = 0.25
SECONDS_BETWEEN_LOOKS = 1.0


class Progress:
    """The measured process's side: counts output tokens, warm-up included.

    Ends the process if its supervisor is gone (its lock is free, which tells across process
    namespaces): the results would be lost.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / PROGRESS_FILE
        self._total = self._done = 0
        self._phase = ""
        self._written = 0.0

    @contextmanager
    def watch_supervisor(self) -> Iterator[None]:
        """Look for the supervisor every second, while something long writes no progress."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(SECONDS_BETWEEN_LOOKS):
                self._end_if_alone()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def begin(self, total: int, phase: str) -> None:
        """There are `total` output tokens to come."""
        self._total, self._phase = total, phase
        self._write()

    def add_total(self, tokens: int) -> None:
        """So many more output tokens are to come than were thought."""
        self._total += tokens

    def phase(self, phase: str) -> None:
        """A new part of the run begins."""
        self._phase = phase
        self._write()

    def advance(self, tokens: int) -> None:
        """So many more tokens were given."""
        self._done += tokens
        if time.monotonic() - self._written > SECONDS_BETWEEN_WRITES:
            self._write()

    def _write(self) -> None:
        self._end_if_alone()
        self._written = time.monotonic()
        state = {"done": self._done, "total": self._total, "phase": self._phase}
        # Renamed into place, so that the reader never sees half of it; not worth an fsync.
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps(state), encoding="utf-8")
        temporary.replace(self._path)

    def _end_if_alone(self) -> None:
        if is_free(self._directory, SUPERVISOR_LOCK):
            os._exit(1)


def read_progress(directory: Path) -> tuple[int, int, str]:
    """(tokens done, tokens in all, phase) as the measured process last wrote it; zeros before."""
    path = directory / PROGRESS_FILE
    if not path.exists():
        return 0, 0, "starting"
    state = json.loads(path.read_text(encoding="utf-8"))
    return state["done"], state["total"], state["phase"]

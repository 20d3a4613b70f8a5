"""Who may write into a run's directory: one supervisor, and one measured process, at a time.

The locks are the operating system's, so a killed process leaves none behind. The measured
process holds one of its own: it may outlive a supervisor that was killed.
"""

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from kvscope.errors import CannotWrite

SUPERVISOR_LOCK = ".run.lock"
SESSION_LOCK = ".session.lock"


class Lock:
    """A held lock."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def release(self) -> None:
        """Give the lock up before the block ends."""
        fcntl.flock(self._file, fcntl.LOCK_UN)


@contextmanager
def hold_lock(directory: Path, name: str) -> Iterator[Lock]:
    """Hold a lock of the directory, waiting for whoever has it.

    Raises CannotWrite if the directory does not let its lock be made.
    """
    with _opened(directory / name) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{directory}: another process is at work here, waiting", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield Lock(file)


@contextmanager
def hold_lock_if_free(directory: Path, name: str) -> Iterator[bool]:
    """Hold a lock of the directory if it is free; gives whether it is held."""
    with _opened(directory / name) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def is_free(directory: Path, name: str) -> bool:
    """Whether a lock of the directory is free."""
    with hold_lock_if_free(directory, name) as free:
        return free


def _opened(path: Path) -> IO[str]:
    try:
        return open(path, "w", encoding="utf-8", opener=_without_waiting)
    except OSError as error:
        raise CannotWrite(path, error) from None


def _without_waiting(path: str, flags: int) -> int:
    """Open for writing, which of a named pipe would wait for a reader."""
    return os.open(path, flags | os.O_NONBLOCK, 0o666)

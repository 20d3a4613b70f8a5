"""Locks of a run's directory: one process that measures it and one engine at a time.

They are locks of the operating system, so a killed process leaves none behind. The measured process
has a separate lock, because it may outlive a killed campaign.
"""

import fcntl
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from kvscope.base.errors import CannotWrite
from kvscope.tables.attempts import SUPERVISOR_LOCK as SUPERVISOR_LOCK

SESSION_LOCK = ".session.lock"


class Lock:
    """A held lock."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def release(self) -> None:
        """Release the lock before the context ends."""
        fcntl.flock(self._file, fcntl.LOCK_UN)


@contextmanager
def hold_lock(directory: Path, name: str) -> Iterator[Lock]:
    """Hold a lock of the directory, waiting while another process has it.

    CannotWrite if the lock file cannot be created.
    """
    with _opened(directory / name) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{directory}: waiting for another process that uses it", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield Lock(file)


@contextmanager
def hold_lock_if_free(directory: Path, name: str) -> Iterator[bool]:
    """Hold a lock of the directory if it is free; yields whether it is held."""
    with _opened(directory / name) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def end_with_holder(directory: Path, name: str) -> None:
    """End this process, without a word, as soon as no other one holds a lock of the directory.

    A thread waits for the lock, which takes no time of a processor, and works below a profiler and
    across process namespaces.
    """
    file = _opened(directory / name)

    def wait() -> None:
        fcntl.flock(file, fcntl.LOCK_SH)
        os._exit(1)

    threading.Thread(target=wait, daemon=True, name="end-with-holder").start()


def _opened(path: Path) -> IO[str]:
    try:
        return open(path, "w", encoding="utf-8", opener=_without_waiting)
    except OSError as error:
        raise CannotWrite(path, error) from None


def _without_waiting(path: str, flags: int) -> int:
    """Open for writing without blocking, as a named pipe would until it has a reader."""
    return os.open(path, flags | os.O_NONBLOCK, 0o666)

"""The lock of a recording's directory: one living server at a time writes into it.

It is a lock of the operating system, so that a killed server leaves none behind.
"""

import fcntl
import os
from pathlib import Path

from kvscope.api.errors import BadInput

LOCK_FILE = "recording.lock"


def claim(directory: Path) -> int:
    """Claim a directory until the returned descriptor is closed, or the process ends.

    BadInput if a living server records there, OSError if it cannot be written.
    """
    descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise BadInput(_taken(directory)) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def problem(directory: Path) -> str | None:
    """Sentence on the living server that records in a directory; None without one."""
    try:
        descriptor = os.open(directory / LOCK_FILE, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _taken(directory)
    finally:
        os.close(descriptor)
    return None


def _taken(directory: Path) -> str:
    try:
        owner = (directory / LOCK_FILE).read_text(encoding="utf-8").strip() or "unknown"
    except (OSError, UnicodeDecodeError):
        owner = "unknown"
    return (
        f"{directory}: the server of process {owner} records there; give each server a directory "
        "of its own"
    )

"""Temporary directories, which are removed however their process ends."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kvscope.base.errors import KvscopeError, reason_of
from kvscope.base.processes import exit_on_signals

SCRATCH = "kvscope-scratch-"  # prefix of a directory that its process has locked


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """Yield an empty directory below $TMPDIR; it is removed, also if a signal ends the process.

    Those of killed processes are removed before.
    """
    for abandoned in _temporary().glob(f"{SCRATCH}*"):
        with suppress(OSError), _lock_of(abandoned):  # of another user, or in use
            shutil.rmtree(abandoned)
    try:
        hidden = Path(tempfile.mkdtemp(prefix=f".{SCRATCH}"))
    except OSError as error:
        raise KvscopeError(
            f"{_temporary()}: cannot be written ({reason_of(error)}); name a directory with room "
            "in TMPDIR"
        ) from None
    with exit_on_signals(), _lock_of(hidden):
        place = hidden.rename(hidden.with_name(hidden.name[1:]))  # others see it when it is locked
        try:
            yield place
        finally:
            with suppress(OSError):  # a process that was killed still ends: the next one removes it
                shutil.rmtree(place)


def _temporary() -> Path:
    """The directory of temporary files; KvscopeError if none can be written."""
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        words = " ".join(str(error.strerror or error).split())
        raise KvscopeError(f"{words}: name a directory with room in TMPDIR") from None


@contextmanager
def _lock_of(directory: Path) -> Iterator[None]:
    """Hold a directory's lock, which ends with the process; OSError if another process holds it."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)

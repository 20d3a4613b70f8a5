"""Attempts to measure a run, and requests to measure it again.

A measurement is made in `attempt/` and moved into place when it is complete; until then the
previous one stays intact. The file `measure-again` requests a new measurement and is removed when
that is complete.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from kvscope.base.errors import BadInput, CannotWrite
from kvscope.base.files import (
    abandoned_temporaries,
    make_directory,
    remove,
    remove_temporaries,
    write_text_if_changed,
)
from kvscope.tables.runfile import (
    COMPLETE,
    EXPERIMENT_FILE,
    FAILED,
    LOG_FILE,
    RUN_DONE,
    RUN_FILE,
    is_complete,
    read_record,
    recorded_files,
    run_sha256,
)

ATTEMPT = "attempt"
SUPERVISOR_LOCK = ".run.lock"  # held by the process that measures or changes a run (`run.locks`)
MEASURE_AGAIN = "measure-again"


def begin_attempt(directory: Path) -> Path:
    """Create an empty attempt/ in a run's directory, replacing an earlier attempt."""
    attempt = directory / ATTEMPT
    remove(attempt)
    make_directory(attempt)
    return attempt


def is_under_way(directory: Path) -> bool:
    """Whether a process is at work on an attempt; nothing is written to find out."""
    if not (directory / ATTEMPT).is_dir():
        return False
    try:
        descriptor = os.open(directory / SUPERVISOR_LOCK, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:  # there is none, or it is another user's
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def log_path(directory: Path) -> Path:
    """The path of the latest log: of an unfinished or failed attempt, else of the run in place."""
    attempted = directory / ATTEMPT / LOG_FILE
    return attempted if attempted.exists() else directory / LOG_FILE


def settle(directory: Path) -> None:
    """Move an attempt that ended into place, and update run.done. Safe to repeat.

    A failed attempt stays in attempt/ if it would replace a complete run. attempt/run.json is moved
    last, so the next call finishes the work of a process that was killed while it moved files.
    run.done exists if and only if the run is complete. The caller holds the supervisor's lock.
    """
    remove_temporaries(directory)
    attempt = directory / ATTEMPT
    ended = _status(attempt)
    if ended == COMPLETE or (ended == FAILED and not is_complete(directory)):
        _move(attempt, directory)
    if _status(directory) == COMPLETE:
        write_text_if_changed(directory / RUN_DONE, run_sha256(directory) + "\n")
        if _is_moved(attempt):
            remove(attempt)
    else:
        remove(directory / RUN_DONE)


def is_settled(directory: Path) -> bool:
    """Whether `settle` would change nothing; the recorded files are not read for this."""
    if (directory / ATTEMPT / RUN_FILE).exists() or abandoned_temporaries(directory):
        return False
    done = directory / RUN_DONE
    if _status(directory) != COMPLETE:
        return not done.exists()
    if _is_moved(directory / ATTEMPT):
        return False
    return done.is_file() and done.read_text() == run_sha256(directory) + "\n"


def _is_moved(attempt: Path) -> bool:
    """Whether an attempt is left over from a process that was killed after it had moved the
    files."""
    names = (RUN_FILE, EXPERIMENT_FILE)
    return attempt.is_dir() and not any((attempt / name).exists() for name in names)


def _status(directory: Path) -> str | None:
    """The status in run.json; None if there is no readable run.json."""
    try:
        return read_record(directory).status
    except BadInput:
        return None


def _move(attempt: Path, directory: Path) -> None:
    new = read_record(attempt)
    remove(directory / RUN_DONE)
    for name in dict.fromkeys((*recorded_files(), *_files(directory))):
        if (attempt / name).exists():
            _replace(attempt / name, directory / name)
        elif name not in new.files:
            remove(directory / name)  # from the previous run
    if (attempt / LOG_FILE).exists():
        _replace(attempt / LOG_FILE, directory / LOG_FILE)
    if new.complete:
        remove(directory / MEASURE_AGAIN)
    _replace(attempt / RUN_FILE, directory / RUN_FILE)
    remove(attempt)


def _files(directory: Path) -> Iterator[str]:
    """The files that a run has recorded, those of packages that are no longer here included."""
    with suppress(BadInput):
        yield from read_record(directory).files


def _replace(source: Path, target: Path) -> None:
    try:
        source.replace(target)
    except OSError as error:
        raise CannotWrite(target, error) from None


def request_again(directory: Path) -> None:
    """Request a new measurement: the next `kvscope run` measures again, even a finished run."""
    make_directory(directory)
    write_text_if_changed(directory / MEASURE_AGAIN, "")


def withdraw_request(directory: Path) -> None:
    """Withdraw the request for a new measurement, and remove a failed attempt at it."""
    if is_requested(directory):
        remove(directory / ATTEMPT)
        remove(directory / MEASURE_AGAIN)  # last: without a request the attempt would stay


def is_requested(directory: Path) -> bool:
    """Whether a new measurement is requested."""
    return (directory / MEASURE_AGAIN).exists()

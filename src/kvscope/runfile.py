"""The directory of a run: `run.json`, the record; `run.done`, the workflow's target.

`run.json` is written last and records size and SHA-256 of every other file. `run.done` holds the
SHA-256 of `run.json`, so it changes exactly when there is a new measurement.

A measurement is made in `attempt/` and moved into place when it is complete; until then the
previous one stays intact. The file `measure-again` requests a new measurement and is removed when
that is complete.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvscope import plugins, runschema
from kvscope.errors import BadInput, CannotWrite
from kvscope.files import (
    make_directory,
    read_json,
    remove,
    remove_temporaries,
    sha256_of,
    write_json,
    write_text_if_changed,
)
from kvscope.layout import EXPERIMENT_FILE as EXPERIMENT_FILE
from kvscope.layout import SEGMENTS
from kvscope.runschema import COMPLETE as COMPLETE
from kvscope.runschema import FAILED as FAILED
from kvscope.runschema import FileRecord, RunRecord

RUN_FILE = "run.json"
SESSION_FILE = "session.json"  # from the measured process to its supervisor
LOG_FILE = "log.txt"
KERNEL_EVENTS = "kernel_events.jsonl.zst"
PERFETTO = "trace.perfetto-trace"  # in the directory of the collected tables
NSYS_LOG = "nsys.log"  # as well: what Nsight Systems says of its capture
SPOOL = "kernel_events.tmp"  # KV events of a repeat before they are encoded; removed after the run
NSYS_REPORT, NSYS_EXPORT = "trace.nsys-rep", "trace.sqlite"
TABLES_OF_OTHERS = "kvscope.table"  # group of entry points, each of which is a table's name
IMPORTED_FROM = "imported_from"  # key of run.json, only in imported runs
RECORDED = "recorded"  # key of run.json, only in recordings of a server (`kvscope record`)
TRACING = "tracing"  # key of run.json, only in runs with KV events

RUN_DONE = "run.done"
ATTEMPT = "attempt"
SUPERVISOR_LOCK = ".run.lock"  # held by the process that measures or changes a run (`run.locks`)
MEASURE_AGAIN = "measure-again"


_RECORDED_FILES = (
    EXPERIMENT_FILE,
    *("workload.parquet", "requests.parquet", "steps.parquet"),
    *("batch.parquet", "preemptions.parquet", "transfers.parquet"),
    *("hits.parquet", "evictions.parquet", "kv_groups.parquet", "layers.parquet"),
    KERNEL_EVENTS,
    NSYS_REPORT,
    NSYS_EXPORT,
)


def recorded_files() -> tuple[str, ...]:
    """The files of a run whose size and SHA-256 run.json records, if they are there."""
    others = filter(str.isidentifier, plugins.names(TABLES_OF_OTHERS))  # else it is no file's name
    return *_RECORDED_FILES, *(f"{name}.parquet" for name in others)


def file_record(path: Path) -> dict[str, Any]:
    """Size and SHA-256 of a file, as run.json and accounts record them."""
    return {"bytes": path.stat().st_size, "sha256": sha256_of(path)}


def file_records(directory: Path) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of each of `recorded_files` that exists in `directory`, by name."""
    present = [directory / name for name in recorded_files() if (directory / name).exists()]
    return {path.name: file_record(path) for path in present}


def file_problem(path: Path, record: FileRecord) -> str | None:
    """How a file differs from its record, in one sentence; None if it does not."""
    if not path.is_file():
        return f"{path}: missing, though it was recorded"
    found, size = path.stat().st_size, record.bytes
    if found != size:
        return f"{path}: {found} bytes, {size} were recorded; the file was cut or changed"
    if sha256_of(path) != record.sha256:
        return f"{path}: its content differs from what was recorded; the file was changed"
    return None


def file_problems(directory: Path, record: RunRecord) -> list[str]:
    """How the files that run.json records differ from their records, a sentence each."""
    return [c for name, file in record.files.items() if (c := file_problem(directory / name, file))]


def require_unchanged(directory: Path, record: RunRecord, *names: str) -> None:
    """Raise BadInput if one of these files has a record in run.json and differs from it."""
    for name in names:
        if (file := record.files.get(name)) and (c := file_problem(directory / name, file)):
            raise BadInput(c)


def write_run(directory: Path, facts: dict[str, Any]) -> None:
    """Write run.json, atomically."""
    write_json(directory / RUN_FILE, {"schema": runschema.VERSION} | facts)


def read_record(directory: Path) -> RunRecord:
    """Read run.json; BadInput if it is absent, damaged, or of another version."""
    path = directory / RUN_FILE
    try:
        facts = read_json(path)
    except BadInput:
        require_collected(directory)
        raise
    return runschema.parse(facts, path)


def read_run(directory: Path) -> dict[str, Any]:
    """The contents of run.json as a JSON object; BadInput as of `read_record`."""
    return read_record(directory).as_written()


def require_collected(directory: Path) -> None:
    """BadInput if a directory has a recording of a server that is no run yet."""
    if not (directory / RUN_FILE).exists() and any(directory.glob(SEGMENTS)):
        raise BadInput(
            f"{directory}: a recording without tables; make them with `kvscope collect {directory}`"
        )


def run_sha256(directory: Path) -> str:
    """SHA-256 of run.json, which identifies the measurement; BadInput if there is none."""
    path = directory / RUN_FILE
    if not path.is_file():
        raise BadInput(f"{path}: no such file; measure it with `kvscope run`")
    return sha256_of(path)


def is_complete(directory: Path, experiment_id: str | None = None) -> bool:
    """Whether the directory has a complete run (of this experiment) with unchanged files."""
    try:
        record = read_record(directory)
    except BadInput:
        return False
    return (
        record.complete
        and experiment_id in (None, record.experiment_id)
        and not file_problems(directory, record)
    )


# ------------------------------------------------------------------ attempts and requests


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
    remove_temporaries(directory, RUN_DONE)
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
    if (directory / ATTEMPT / RUN_FILE).exists():
        return False
    done = directory / RUN_DONE
    if _status(directory) != COMPLETE:
        return not done.exists()
    if _is_moved(directory / ATTEMPT):
        return False
    return done.is_file() and done.read_text() == run_sha256(directory) + "\n"


def _is_moved(attempt: Path) -> bool:
    """Whether an attempt is what a process left that was killed after it had moved the files."""
    left = (RUN_FILE, EXPERIMENT_FILE)
    return attempt.is_dir() and not any((attempt / name).exists() for name in left)


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
        remove(directory / MEASURE_AGAIN)
        remove(directory / ATTEMPT)


def is_requested(directory: Path) -> bool:
    """Whether a new measurement is requested."""
    return (directory / MEASURE_AGAIN).exists()

"""A run's directory: `run.json`, what happened; `run.done`, which the workflow watches.

`run.json` is written last and vouches for every other file with its size and SHA-256. `run.done`
holds the SHA-256 of `run.json`: it changes exactly when there is a new measurement.

A measurement is made in `attempt/` and moved into place when it is complete, so that the one before
stays whole until then. `measure-again` asks for a new measurement and goes when there is one.
"""

from pathlib import Path
from typing import Any

from kvscope import runschema
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

RUN_FILE = "run.json"
SESSION_FILE = "session.json"  # from the measured process to its supervisor
LOG_FILE = "log.txt"
KERNEL_EVENTS = "kernel_events.jsonl.zst"
PERFETTO = "trace.perfetto-trace"  # among the collected tables
SPOOL = "kernel_events.tmp"  # a repeat's KV events as the kernels wrote them; gone after the run
NSYS_REPORT, NSYS_EXPORT = "trace.nsys-rep", "trace.sqlite"
IMPORTED_FROM = "imported_from"  # key that only the record of a run made elsewhere has
TRACING = "tracing"  # key that only the record of a run with KV events has
COMPLETE, FAILED = "complete", "failed"
STATUSES = (COMPLETE, FAILED)

RUN_DONE = "run.done"
ATTEMPT = "attempt"
MEASURE_AGAIN = "measure-again"

EXPERIMENT_FILE = "experiment.yaml"
# Every file a run may leave and that run.json vouches for, in the order of results' layout.
RECORDED_FILES = (
    EXPERIMENT_FILE,
    *("workload.parquet", "requests.parquet", "steps.parquet"),
    *("batch.parquet", "preemptions.parquet", "layers.parquet"),
    KERNEL_EVENTS,
    NSYS_REPORT,
    NSYS_EXPORT,
)


def file_record(path: Path) -> dict[str, Any]:
    """A file's size and SHA-256, as records hold them."""
    return {"bytes": path.stat().st_size, "sha256": sha256_of(path)}


def file_records(directory: Path) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of every recorded file that is there."""
    present = [directory / name for name in RECORDED_FILES if (directory / name).exists()]
    return {path.name: file_record(path) for path in present}


def file_problem(path: Path, record: dict[str, Any]) -> str | None:
    """What is wrong with a recorded file, in one sentence; None if it is as recorded."""
    if not path.is_file():
        return f"{path}: missing, though it was recorded"
    found, size = path.stat().st_size, record["bytes"]
    if found != size:
        return f"{path}: {found} bytes, {size} were recorded; the file was cut or changed"
    if sha256_of(path) != record["sha256"]:
        return f"{path}: its content differs from what was recorded; the file was changed"
    return None


def file_problems(directory: Path, facts: dict[str, Any]) -> list[str]:
    """What is wrong with the files that run.json (`facts`) records, a sentence each."""
    return [
        c
        for name, record in facts["files"].items()
        if (c := file_problem(directory / name, record))
    ]


def require_unchanged(directory: Path, facts: dict[str, Any], *names: str) -> None:
    """Raise BadInput if one of these files is recorded and not as recorded."""
    for name in names:
        if name in facts["files"] and (
            complaint := file_problem(directory / name, facts["files"][name])
        ):
            raise BadInput(complaint)


def write_run(directory: Path, facts: dict[str, Any]) -> None:
    """Write run.json, atomically."""
    write_json(directory / RUN_FILE, {"schema": runschema.VERSION} | facts)


def read_run(directory: Path) -> dict[str, Any]:
    """Read run.json; BadInput if it is absent, damaged, or of another version."""
    path = directory / RUN_FILE
    facts: dict[str, Any] = read_json(path)
    if found := runschema.schema_problem(facts):
        raise BadInput(f"{path}: not the record of a run: {found}")
    return facts


def run_sha256(directory: Path) -> str:
    """SHA-256 of run.json: which measurement is here. BadInput if there is none."""
    path = directory / RUN_FILE
    if not path.is_file():
        raise BadInput(f"{path}: no such file; measure it with `kvscope run`")
    return sha256_of(path)


def is_complete(directory: Path, experiment_id: str) -> bool:
    """Whether a run of this experiment is here, finished, with every file as recorded."""
    try:
        facts = read_run(directory)
    except BadInput:
        return False
    return (
        facts["status"] == COMPLETE
        and facts["experiment_id"] == experiment_id
        and not file_problems(directory, facts)
    )


# ------------------------------------------------------------------ attempts and requests


def begin_attempt(directory: Path) -> Path:
    """An empty attempt/ in a run's directory, whatever an earlier attempt left."""
    attempt = directory / ATTEMPT
    remove(attempt)
    make_directory(attempt)
    return attempt


def log_path(directory: Path) -> Path:
    """The log of the last measurement: of the attempt that is under way or failed, if any."""
    attempted = directory / ATTEMPT / LOG_FILE
    return attempted if attempted.exists() else directory / LOG_FILE


def settle(directory: Path) -> None:
    """Move an attempt that ended into place, and keep run.done true. Safe to repeat.

    A failed attempt stays in attempt/ if it would replace a complete run. A process killed while
    files move leaves the rest to the next call: attempt/run.json goes last. run.done is there
    if and only if the run is complete. The caller holds the supervisor's lock.
    """
    remove_temporaries(directory, RUN_DONE)
    attempt = directory / ATTEMPT
    ended = _status(attempt)
    if ended == COMPLETE or (ended == FAILED and not _complete_before(directory)):
        _move(attempt, directory)
    if _status(directory) == COMPLETE:
        write_text_if_changed(directory / RUN_DONE, run_sha256(directory) + "\n")
    else:
        remove(directory / RUN_DONE)


def is_settled(directory: Path) -> bool:
    """Whether `settle` would change nothing, without a look at the recorded files."""
    if (directory / ATTEMPT / RUN_FILE).exists():
        return False
    done = directory / RUN_DONE
    if _status(directory) != COMPLETE:
        return not done.exists()
    return done.is_file() and done.read_text() == run_sha256(directory) + "\n"


def _status(directory: Path) -> str | None:
    """The status that run.json has; None if there is none that can be read."""
    try:
        return str(read_run(directory)["status"])
    except BadInput:
        return None


def _complete_before(directory: Path) -> bool:
    """Whether a complete run is in place, which a failed attempt must not replace."""
    try:
        facts = read_run(directory)
    except BadInput:
        return False
    return facts["status"] == COMPLETE and not file_problems(directory, facts)


def _move(attempt: Path, directory: Path) -> None:
    complete = read_run(attempt)["status"] == COMPLETE
    remove(directory / RUN_DONE)
    new = read_run(attempt)["files"]
    for name in RECORDED_FILES:
        if (attempt / name).exists():
            _replace(attempt / name, directory / name)
        elif name not in new:
            remove(directory / name)  # of the run before
    if (attempt / LOG_FILE).exists():
        _replace(attempt / LOG_FILE, directory / LOG_FILE)
    if complete:
        remove(directory / MEASURE_AGAIN)
    _replace(attempt / RUN_FILE, directory / RUN_FILE)
    remove(attempt)


def _replace(source: Path, target: Path) -> None:
    try:
        source.replace(target)
    except OSError as error:
        raise CannotWrite(target, error) from None


def request_again(directory: Path) -> None:
    """Ask for a new measurement, which the next `kvscope run` makes, also of a finished run."""
    make_directory(directory)
    write_text_if_changed(directory / MEASURE_AGAIN, "")


def withdraw_request(directory: Path) -> None:
    """Do no longer ask for a new measurement; what a failed one left goes, too."""
    if is_requested(directory):
        remove(directory / MEASURE_AGAIN)
        remove(directory / ATTEMPT)


def is_requested(directory: Path) -> bool:
    """Whether a new measurement is requested."""
    return (directory / MEASURE_AGAIN).exists()

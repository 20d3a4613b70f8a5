"""The directory of a run: `run.json`, the record; `run.done`, the workflow's target.

`run.json` is written last and records size and SHA-256 of every other file. `run.done` holds the
SHA-256 of `run.json`, so it changes exactly when there is a new measurement.
"""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kvscope.base import plugins
from kvscope.base.errors import BadInput
from kvscope.base.files import read_json, sha256_of, write_json
from kvscope.base.layout import EXPERIMENT_FILE as EXPERIMENT_FILE
from kvscope.base.layout import SEGMENTS
from kvscope.base.reading import first_fault
from kvscope.tables import runschema
from kvscope.tables.runschema import COMPLETE as COMPLETE
from kvscope.tables.runschema import FAILED as FAILED
from kvscope.tables.runschema import FileRecord, RunRecord

RUN_FILE = "run.json"
SESSION_FILE = "session.json"  # from the measured process to its campaign
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
    """Sentence on how a file differs from its record; None if it does not."""
    if not path.is_file():
        return f"{path}: missing, though it was recorded"
    bytes_, size = path.stat().st_size, record.bytes
    if bytes_ != size:
        return f"{path}: {bytes_} bytes, {size} were recorded; the file was cut or changed"
    if sha256_of(path) != record.sha256:
        return f"{path}: its content differs from what was recorded; the file was changed"
    return None


def file_problems(directory: Path, record: RunRecord) -> list[str]:
    """Sentences on the files that differ from their records in run.json."""
    return [c for name, file in record.files.items() if (c := file_problem(directory / name, file))]


def require_unchanged(directory: Path, record: RunRecord, *names: str) -> None:
    """Raise BadInput if a named file differs from its record in run.json."""
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
    return parse(facts, path)


def parse(facts: Any, path: Path) -> RunRecord:
    """The record of a run, from the JSON of the file `path`; BadInput if it is no record."""
    try:
        return _parsed(facts)
    except ValueError as error:
        raise BadInput(f"{path}: not the record of a run: {error}") from None


def _parsed(facts: Any) -> RunRecord:
    """The record of a run; ValueError names the first problem."""
    if not isinstance(facts, dict):
        raise ValueError(f"must be one JSON object, not {type(facts).__name__}")
    if facts.get("schema") not in runschema.READABLE:
        readable = f"{runschema.READABLE[0]} to {runschema.READABLE[-1]}"
        raise ValueError(f"schema is {facts.get('schema')!r:.60}, this kvscope reads {readable}")
    try:
        return RunRecord.model_validate(facts)
    except ValidationError as error:
        key, message = first_fault(error)
        first = error.errors(include_url=False)[0]
        shown = "" if first["type"] == "missing" else f" ({first['input']!r:.60})"
        raise ValueError(f"key {key}{shown}: {message}") from None


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
    """SHA-256 of run.json, which identifies the measurement; BadInput without that file."""
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

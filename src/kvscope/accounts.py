"""`collect.json` and `analyse.json`: what a stage made of a run, and of which measurement.

An account is written last. It names the measurement by the SHA-256 of its run.json and vouches for
every file that the stage wrote with its size and SHA-256, so that a later stage notices a table of
another measurement and a table that was changed.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvscope.errors import BadInput
from kvscope.files import make_directory, read_json, remove, remove_temporaries, write_json
from kvscope.reading import short_repr
from kvscope.runfile import (
    COMPLETE,
    IMPORTED_FROM,
    PERFETTO,
    RUN_FILE,
    TRACING,
    file_problem,
    file_record,
    read_run,
    run_sha256,
)
from kvscope.runschema import ABSENT, FileName, FileRecord, Whole
from kvscope.tables import KV_TABLES, METRICS, NSYS_TABLES, SCHEMA_VERSION, TIMELINE, Table

COLLECTED, ANALYSED = "collect.json", "analyse.json"
# The files that a stage may make beside its account, and the command that makes them.
FILES = {
    COLLECTED: (*(table.file for table in (*NSYS_TABLES, *KV_TABLES, TIMELINE)), PERFETTO),
    ANALYSED: (METRICS.file,),
}
COMMANDS = {COLLECTED: "kvscope collect", ANALYSED: "kvscope analyse"}


HASHED_BYTES = 1 << 20
"""Files of at most this size are hashed wherever an account is looked at."""


class StaleResult(BadInput):
    """What a stage made is of another measurement than the run's directory holds now."""


class _Part(BaseModel):
    """Known keys have these types; more keys may come with later versions."""

    model_config = ConfigDict(extra="allow", strict=True)


class _AccountRecord(_Part):
    """The keys that every account has."""

    run_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None
    files: dict[FileName, FileRecord]


class _OracleResult(_Part):
    """What an oracle found among the KV events."""

    violations: Whole
    first: str


class _KvEventsRecord(_Part):
    """What was collected of the KV events."""

    rows: Whole
    oracles: dict[str, _OracleResult]


class _CollectRecord(_AccountRecord):
    """collect.json."""

    rows: dict[str, Whole]
    warnings: list[str]
    kv_events: _KvEventsRecord = ABSENT


class _ReasonRecord(_Part):
    """A reason why a run is not valid."""

    name: str
    detail: str


class _VerdictRecord(_Part):
    """What an oracle found."""

    name: str
    sentence: str
    needs: str
    state: Literal["held", "violated", "not applicable"]
    violations: Whole
    first: str


class _AnalyseRecord(_AccountRecord):
    """analyse.json."""

    valid: bool
    reasons: list[_ReasonRecord]
    oracles: list[_VerdictRecord]


_SCHEMAS: dict[str, type[_AccountRecord]] = {COLLECTED: _CollectRecord, ANALYSED: _AnalyseRecord}


def begin(out: Path, account: str) -> None:
    """Make `out` ready for a stage's files: remove the account and files of an earlier run.

    Nothing vouches for files while they change, and none is left that is not made again.
    """
    make_directory(out)
    for name in (account, *FILES[account]):
        remove(out / name)
    remove_temporaries(out)


def write(out: Path, account: str, run: Path | None, facts: dict[str, Any]) -> None:
    """Write an account of a stage's files in `out`, made of the measurement in `run`, if any."""
    made = {name: file_record(out / name) for name in FILES[account] if (out / name).exists()}
    of = run_sha256(run) if run else None
    write_json(out / account, {"schema": SCHEMA_VERSION, "run_sha256": of, **facts, "files": made})


def read(out: Path, account: str, run: Path) -> dict[str, Any]:
    """Read an account of the measurement in `run`.

    BadInput names the file if it is absent or damaged, or lacks a file that is due; Stale if it was
    made of another measurement.
    """
    path = out / account
    remedy = f"make it with `{COMMANDS[account]} {run}`"
    if not path.exists():
        raise BadInput(f"{path}: no such file; {remedy}")
    facts: dict[str, Any] = read_json(path)
    try:
        of = _SCHEMAS[account].model_validate(facts).run_sha256
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        of_key = f"key {short_repr(key)[1:-1]}: " if key else ""
        raise BadInput(f"{path}: damaged, {of_key}{first['msg']}; {remedy}") from None
    if of != run_sha256(run):
        raise StaleResult(
            f"{path} was made from another measurement than {run / RUN_FILE} holds now; {remedy}"
        )
    record = read_run(run)
    if lacking := _files_due(account, record) - facts["files"].keys():
        raise BadInput(f"{path}: damaged, files has no {min(lacking)}; {remedy}")
    if account == COLLECTED and _has_kv_events(record) and "kv_events" not in facts:
        raise BadInput(f"{path}: damaged, kv_events is missing; {remedy}")
    return facts


def _files_due(account: str, record: dict[str, Any]) -> set[str]:
    """The files that a stage makes of a run with this run.json; it may make more."""
    if account == ANALYSED:
        return {METRICS.file}
    due: tuple[Table, ...] = KV_TABLES if _has_kv_events(record) else ()
    if IMPORTED_FROM not in record:  # others published no more
        due += (*NSYS_TABLES, TIMELINE)
    return {table.file for table in due}


def _has_kv_events(record: dict[str, Any]) -> bool:
    """Whether a run was traced to its end; one that failed may have left no events."""
    return TRACING in record and record["status"] == COMPLETE


def is_current(out: Path, account: str, run: Path) -> bool:
    """Whether an account is of the measurement in `run`, and its files are as it recorded them.

    Of a large file that is older than the account the size is enough: hashing it takes a while.
    """
    try:
        files = read(out, account, run)["files"]
    except BadInput:
        return False
    written_s = (out / account).stat().st_mtime
    return not any(_differs(out / name, file, written_s) for name, file in files.items())


def _differs(path: Path, record: dict[str, Any], written_s: float) -> bool:
    if not path.is_file() or path.stat().st_size != record["bytes"]:
        return True
    trusted = record["bytes"] > HASHED_BYTES and path.stat().st_mtime <= written_s
    return not trusted and file_problem(path, record) is not None


def require_unchanged(out: Path, facts: dict[str, Any], *names: str) -> None:
    """Raise BadInput if one of these files is not as the account `facts` records it."""
    for name in names:
        record = facts["files"].get(name)
        complaint = (
            file_problem(out / name, record) if record else f"{out / name}: not in the account"
        )
        if complaint:
            raise BadInput(complaint)


def complaints(out: Path, account: str, run: Path) -> list[str]:
    """What is wrong with an account and its files, a sentence each; nothing if it is not there."""
    if not (out / account).exists():
        return []
    try:
        facts = read(out, account, run)
    except BadInput as error:
        return [str(error)]
    return [c for name, file in facts["files"].items() if (c := file_problem(out / name, file))]

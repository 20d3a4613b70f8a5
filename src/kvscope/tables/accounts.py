"""`collect.json` and `analyse.json`: the accounts of what a stage computed from a run.

A stage writes its account last. The account names the measurement by the SHA-256 of its run.json
and records size and SHA-256 of every file that the stage wrote. A later stage can therefore detect
tables that belong to another measurement and tables that were changed.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from kvscope.base.errors import BadInput
from kvscope.base.files import make_directory, read_json, remove, remove_temporaries, write_json
from kvscope.base.reading import damage, short_repr
from kvscope.tables import (
    ANALYSIS_TABLES,
    KV_TABLES,
    NSYS_TABLES,
    REPEAT_METRICS,
    SCHEMA_VERSION,
    TIMELINE,
)
from kvscope.tables.runfile import (
    NSYS_LOG,
    PERFETTO,
    RUN_FILE,
    file_problem,
    file_record,
    read_record,
    run_sha256,
)
from kvscope.tables.runschema import Absent, FileName, FileRecord, Record, RunRecord, Whole

COLLECTED, ANALYSED = "collect.json", "analyse.json"
# The files that a stage may write beside its account, and the command that writes them.
FILES = {
    COLLECTED: (
        *(table.file for table in (*NSYS_TABLES, *KV_TABLES, TIMELINE)),
        *(PERFETTO, NSYS_LOG),
    ),
    ANALYSED: tuple(table.file for table in ANALYSIS_TABLES),
}
COMMANDS = {COLLECTED: "kvscope collect", ANALYSED: "kvscope analyse"}


HASHED_BYTES = 1 << 20
"""Files of at most this size are hashed whenever an account is checked."""


class StaleResult(BadInput):
    """A stage's results are of another measurement than the directory holds, or another version."""


class _AccountRecord(Record, strict=True):
    """The keys of every account."""

    run_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None
    files: dict[FileName, FileRecord]


class _OracleResult(Record, strict=True):
    """Violations that an oracle found among the KV events."""

    violations: Whole
    first: str


class _KvEventsRecord(Record, strict=True):
    """Rows and oracles' results of the collected KV events."""

    rows: Whole
    oracles: dict[str, _OracleResult]


class _CollectRecord(_AccountRecord):
    """collect.json."""

    rows: dict[str, Whole]
    warnings: list[str]
    kv_events: Absent[_KvEventsRecord] = None


class _ReasonRecord(Record, strict=True):
    """A reason why a run is not valid, or a circumstance of it."""

    name: str
    detail: str


class _VerdictRecord(Record, strict=True):
    """Verdict of an oracle."""

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
    circumstances: Absent[list[_ReasonRecord]] = None  # of earlier versions
    oracles: list[_VerdictRecord]


_SCHEMAS: dict[str, type[_AccountRecord]] = {COLLECTED: _CollectRecord, ANALYSED: _AnalyseRecord}


def begin(out: Path, account: str) -> None:
    """Prepare `out` for a stage: remove the account and the files of an earlier run.

    Without an account, no reader trusts the files while they are being written.
    """
    make_directory(out)
    for name in (account, *FILES[account]):
        remove(out / name)
    remove_temporaries(out)


def write(out: Path, account: str, run: Path | None, facts: dict[str, Any]) -> None:
    """Write the account of a stage's files in `out`.

    `run` is the directory of the measurement, or None for an nsys export without a run. `facts` are
    further keys of the account.
    """
    files = {name: file_record(out / name) for name in FILES[account] if (out / name).exists()}
    sha256 = run_sha256(run) if run else None
    facts = {"schema": SCHEMA_VERSION, "run_sha256": sha256, **facts, "files": files}
    write_json(out / account, facts)


def read(out: Path, account: str, run: Path) -> dict[str, Any]:
    """Read the account of the measurement in `run`.

    BadInput if the account is missing or damaged, or does not list a file that the stage must
    write; StaleResult if it was made from another measurement, or by an earlier version.
    """
    path = out / account
    remedy = f"make it with `{COMMANDS[account]} {run}`"
    if not path.exists():
        raise BadInput(f"{path}: no such file; {remedy}")
    facts: dict[str, Any] = read_json(path)
    try:
        measurement = _SCHEMAS[account].model_validate(facts).run_sha256
    except ValidationError as error:
        raise BadInput(f"{path}: {damage(error)}; {remedy}") from None
    if (version := facts.get("schema")) != SCHEMA_VERSION:
        raise StaleResult(
            f"{path}: of schema version {short_repr(version)}, this kvscope reads "
            f"{SCHEMA_VERSION}; {remedy}"
        )
    if measurement != run_sha256(run):
        raise StaleResult(
            f"{path} was made from another measurement than {run / RUN_FILE} holds now; {remedy}"
        )
    record = read_record(run)
    if lacking := _files_due(account, record) - facts["files"].keys():
        if lacking == {REPEAT_METRICS.file}:
            raise StaleResult(f"{path}: of an earlier version, without {min(lacking)}; {remedy}")
        raise BadInput(f"{path}: damaged, files has no {min(lacking)}; {remedy}")
    if account == COLLECTED and _has_kv_events(record) and "kv_events" not in facts:
        raise BadInput(f"{path}: damaged, kv_events is missing; {remedy}")
    return facts


def _files_due(account: str, record: RunRecord) -> set[str]:
    """The files that a stage must write for a run with this run.json; it may write more."""
    if account == ANALYSED:
        return {*FILES[ANALYSED]}
    tables_ = (*NSYS_TABLES, *(KV_TABLES if _has_kv_events(record) else ()), TIMELINE)
    return {table.file for table in tables_}


def _has_kv_events(record: RunRecord) -> bool:
    """Whether a run was traced and completed; a failed run may have left no events."""
    return record.tracing is not None and record.complete


def is_current(out: Path, account: str, run: Path) -> bool:
    """Whether an account belongs to the measurement in `run`, and its files are unchanged.

    A file above HASHED_BYTES that is older than the account is compared by size only, because
    hashing it takes too long.
    """
    try:
        files = files_of(read(out, account, run))
    except BadInput:
        return False
    written_s = (out / account).stat().st_mtime
    return not any(_differs(out / name, file, written_s) for name, file in files.items())


def files_of(facts: Mapping[str, Any]) -> dict[str, FileRecord]:
    """The files that an account records, by name."""
    return {name: FileRecord(**file) for name, file in facts["files"].items()}


def _differs(path: Path, record: FileRecord, written_s: float) -> bool:
    if not path.is_file() or path.stat().st_size != record.bytes:
        return True
    trusted = record.bytes > HASHED_BYTES and path.stat().st_mtime <= written_s
    return not trusted and file_problem(path, record) is not None


def require_unchanged(out: Path, facts: dict[str, Any], *names: str) -> None:
    """Raise BadInput if a named file differs from its record in the account `facts`."""
    files = files_of(facts)
    for name in names:
        record = files.get(name)
        complaint = (
            file_problem(out / name, record) if record else f"{out / name}: not in the account"
        )
        if complaint:
            raise BadInput(complaint)


def complaints(out: Path, account: str, run: Path) -> list[str]:
    """Faults of an account and its files, one sentence each; empty without an account."""
    if not (out / account).exists():
        return []
    try:
        facts = read(out, account, run)
    except BadInput as error:
        return [str(error)]
    return [c for name, file in files_of(facts).items() if (c := file_problem(out / name, file))]

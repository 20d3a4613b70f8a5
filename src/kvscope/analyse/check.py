"""Is a run's directory sound? Files as recorded, schemas right, tokens conserved, blocks free."""

from pathlib import Path
from typing import Any

from kvscope import tables
from kvscope.analyse.records import read_records
from kvscope.analyse.validity import conservation, differing_outputs, leaks, missing_tokens
from kvscope.collect.flushes import read_flushes
from kvscope.collect.host import HostRecords
from kvscope.collect.judge import Judge, judged
from kvscope.errors import BadInput
from kvscope.files import sha256_of
from kvscope.runfile import COMPLETE, IMPORTED_FROM, KERNEL_EVENTS, RUN_FILE, TRACING, read_run


def check_run(run: Path) -> list[str]:
    """What is wrong with a run's directory, one sentence each; empty if it is sound.

    BadInput if there is no such directory.
    """
    if not run.is_dir():
        raise BadInput(f"{run}: no such directory; give a run's, e.g. results/experiments/<id>")
    try:
        facts = read_run(run)
        files = facts["files"]
    except BadInput as error:
        return [f"{error}; the run did not finish"]
    except KeyError as key:
        return [f"{run / RUN_FILE}: key {key} is missing"]
    complaints = [c for name in files if (c := _check_file(run / name, files[name]))]
    if complaints:
        return complaints
    if facts["status"] != COMPLETE:
        return [f"{run}: the run failed ({facts['reason']})"]
    _, records = read_records(run)
    traced = _violations(run) if TRACING in facts else []
    if IMPORTED_FROM in facts:
        return traced  # published passes come without the requests they could be held against
    found = [
        *conservation(records),
        *missing_tokens(records),
        *differing_outputs(records),
        *leaks(facts),
    ]
    return [f"{run}: {reason.name}, {reason.detail}" for reason in found] + traced


def _violations(run: Path) -> list[str]:
    """The oracles that the run's raw KV events violate, whatever was collected of them."""
    try:
        judge = Judge.of_run(HostRecords.read(run))
        verdict = judged(read_flushes(run / KERNEL_EVENTS), judge)
    except BadInput as error:
        return [str(error)]
    return [
        f"{run}: {name}, {found['violations']} ({found['first']})"
        for name, found in verdict.items()
        if found["violations"]
    ]


def _check_file(path: Path, recorded: dict[str, Any]) -> str | None:
    if not path.exists():
        return f"{path}: missing, though the run recorded it"
    found, size = path.stat().st_size, recorded["bytes"]
    if found != size:
        return f"{path}: {found} bytes, {size} were recorded; the file was cut or changed"
    if sha256_of(path) != recorded["sha256"]:
        return f"{path}: its content differs from what was recorded; the file was changed"
    if path.suffix == ".parquet":
        return tables.check_file(tables.TABLES[path.stem], path)
    return None

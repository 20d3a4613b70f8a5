"""Is a run's directory sound? Files as recorded, schemas right, tokens conserved, blocks free.

What was collected and analysed of it must be of this measurement, and unchanged.
"""

from pathlib import Path
from typing import Any

from kvscope import accounts, tables
from kvscope.analyse.records import read_records
from kvscope.analyse.validity import conservation, differing_outputs, leaks, missing_tokens
from kvscope.collect.flushes import read_flushes
from kvscope.collect.host import HostRecords
from kvscope.collect.judge import Judge, judged
from kvscope.errors import BadInput
from kvscope.runfile import (
    COMPLETE,
    IMPORTED_FROM,
    KERNEL_EVENTS,
    RUN_FILE,
    TRACING,
    changed,
    read_run,
    tables_directory,
)

ACCOUNTS = (accounts.COLLECTED, accounts.ANALYSED)


def check_run(run: Path) -> list[str]:
    """What is wrong with a run's directory, one sentence each; empty if it is sound.

    BadInput if there is no such directory.
    """
    if not run.is_dir():
        raise BadInput(f"{run}: no such directory; give a run's, e.g. results/experiments/<id>")
    if not (run / RUN_FILE).exists():
        return [f"{run / RUN_FILE}: no such file; the run did not finish"]
    try:
        facts = read_run(run)
    except BadInput as error:
        return [str(error)]
    complaints = [
        c for name, file in facts["files"].items() if (c := _check_file(run / name, file))
    ]
    if complaints:
        return complaints
    if facts["status"] != COMPLETE:
        return [f"{run}: the run failed ({facts['reason']})"]
    made = tables_directory(run)
    complaints = [c for name in ACCOUNTS for c in accounts.complaints(made, name, run)]
    _, records = read_records(run)
    traced = _violations(run) if TRACING in facts else []
    if IMPORTED_FROM in facts:
        # Published passes come without the requests they could be held against.
        return complaints + traced
    found = [
        *conservation(records),
        *missing_tokens(records),
        *differing_outputs(records),
        *leaks(facts),
    ]
    return [*complaints, *(f"{run}: {reason.name}, {reason.detail}" for reason in found), *traced]


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


def _check_file(path: Path, record: dict[str, Any]) -> str | None:
    complaint = changed(path, record)
    if complaint is None and path.suffix == ".parquet" and path.stem in tables.TABLES:
        return tables.check_file(tables.TABLES[path.stem], path)
    return complaint

"""Check a run's directory: recorded hashes, table schemas, and every oracle.

Collected tables and metrics must be of the same measurement and unchanged.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvscope import accounts, tables
from kvscope.analyse.checklist import checklist
from kvscope.analyse.records import read_records
from kvscope.errors import BadInput
from kvscope.layout import tables_directory
from kvscope.oracle import VIOLATED, Verdict
from kvscope.runfile import COMPLETE, RUN_FILE, file_problem, read_run

ACCOUNTS = (accounts.COLLECTED, accounts.ANALYSED)


@dataclass(frozen=True)
class CheckResult:
    """The faults of a run's directory, one sentence each, and the verdicts of its oracles."""

    complaints: list[str]
    verdicts: list[Verdict]


def check_run(run: Path) -> list[str]:
    """The faults of a run's directory, one sentence each; empty if it is sound."""
    return inspect_run(run).complaints


def inspect_run(run: Path) -> CheckResult:
    """Check a run's directory and judge it by every oracle.

    The oracles read the raw records, not the collected tables. They are skipped if files are
    damaged. Raises BadInput if the directory does not exist.
    """
    if not run.is_dir():
        raise BadInput(f"{run}: no such directory; give a run's, e.g. results/experiments/<id>")
    if not (run / RUN_FILE).exists():
        return CheckResult([f"{run / RUN_FILE}: no such file; the run did not finish"], [])
    try:
        facts = read_run(run)
    except BadInput as error:
        return CheckResult([str(error)], [])
    complaints = [
        c for name, file in facts["files"].items() if (c := _check_file(run / name, file))
    ]
    if complaints:
        return CheckResult(complaints, [])
    if facts["status"] != COMPLETE:
        return CheckResult([f"{run}: the run failed ({facts['reason']})"], [])
    made = tables_directory(run)
    complaints = [c for name in ACCOUNTS for c in accounts.complaints(made, name, run)]
    try:
        verdicts = checklist(read_records(run))
    except BadInput as error:
        return CheckResult([*complaints, str(error)], [])
    violated = [
        f"{run}: {v.name}, {v.violations} ({v.first})" for v in verdicts if v.state == VIOLATED
    ]
    return CheckResult([*complaints, *violated], verdicts)


def _check_file(path: Path, record: dict[str, Any]) -> str | None:
    complaint = file_problem(path, record)
    if complaint is None and path.suffix == ".parquet" and path.stem in tables.TABLES:
        return tables.check_file(tables.TABLES[path.stem], path)
    return complaint

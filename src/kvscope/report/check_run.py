"""Check a run's directory: its files and settings, every oracle, and what was computed from it.

Collect and analyse run again from the records, into a temporary directory, and everything that they
wrote is compared with what they write now. Hashes cannot tell a result from one that was edited
together with its hash; this can.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from kvscope import tables
from kvscope.base.errors import BadInput, CannotWrite, KvscopeError
from kvscope.base.files import read_json
from kvscope.base.layout import tables_directory
from kvscope.base.scratch import scratch_directory
from kvscope.collect.collector import collect_run
from kvscope.judge.checklist import checklist, read_verdicts
from kvscope.judge.differences import stage_differences
from kvscope.judge.records import read_records
from kvscope.metrics.experiment import analyse
from kvscope.plan.experiment import read_settings, unknown_options
from kvscope.tables import accounts
from kvscope.tables.accounts import ANALYSED, COLLECTED
from kvscope.tables.added import find_table
from kvscope.tables.runfile import (
    EXPERIMENT_FILE,
    PERFETTO,
    RUN_FILE,
    file_problem,
    read_record,
    recorded_files,
    require_collected,
)
from kvscope.tables.runschema import RunRecord
from kvscope.tables.verdict import VIOLATED, Verdict

STAGES = (COLLECTED, ANALYSED)


@dataclass(frozen=True)
class CheckResult:
    """The faults of a run's directory, one sentence each, and the verdicts of its oracles."""

    complaints: list[str]
    verdicts: list[Verdict]


def check_run(run: Path, quick: bool = False) -> list[str]:
    """The faults of a run's directory, one sentence each; empty if it is sound."""
    return inspect_run(run, quick).complaints


def inspect_run(run: Path, quick: bool = False) -> CheckResult:
    """Check a run's directory and judge it by every oracle.

    The oracles read the raw records, not the collected tables. They are skipped if files are
    damaged. Unless `quick`, the tables and metrics are computed again and compared. Raises BadInput
    if the directory does not exist, KvscopeError if there is no room for the tables.
    """
    if not run.is_dir():
        raise BadInput(f"{run}: no such directory; give a run's, e.g. results/experiments/<id>")
    require_collected(run)
    if not (run / RUN_FILE).exists():
        return CheckResult([f"{run / RUN_FILE}: no such file; the run did not finish"], [])
    try:
        record = read_record(run)
    except BadInput as error:
        return CheckResult([str(error)], [])
    if damaged := list(_damaged_files(run, record)):
        return CheckResult(damaged, [])
    if not record.complete:
        return CheckResult([f"{run}: the run failed ({record.reason})"], [])
    return _inspect_complete(run, record, quick)


def _inspect_complete(run: Path, record: RunRecord, quick: bool) -> CheckResult:
    """Check a complete run whose recorded files are as they were recorded."""
    home = tables_directory(run)
    faults = {
        stage: accounts.complaints(home, stage, run) or [*_not_accounted_for(home, stage)]
        for stage in STAGES
    }
    complaints = [*chain(*faults.values(), _not_recorded(run, record))]
    try:
        complaints += _unconfirmed_settings(run)
        if quick:
            verdicts = checklist(read_records(run))
        else:
            sound = [stage for stage in STAGES if (home / stage).exists() and not faults[stage]]
            differences, verdicts = _compute_again(run, record, home, sound)
            complaints += differences
    except BadInput as error:
        return CheckResult([*complaints, str(error)], [])
    violated = [
        f"{run}: {v.name}, {v.violations} ({v.first})" for v in verdicts if v.state == VIOLATED
    ]
    return CheckResult([*complaints, *violated], verdicts)


def _damaged_files(run: Path, record: RunRecord) -> Iterator[str]:
    """Differences of recorded files from their records or their schema."""
    for name, file in record.files.items():
        path = run / name
        complaint = file_problem(path, file)
        if complaint is None and path.suffix == ".parquet" and (table := find_table(path.stem)):
            complaint = tables.check_file(table, path)
        if complaint:
            yield complaint


def _not_recorded(run: Path, record: RunRecord) -> Iterator[str]:
    """Files of a run that run.json does not vouch for."""
    for name in recorded_files():
        if name not in record.files and (run / name).exists():
            yield f"{run / name}: there, but not recorded in {RUN_FILE}"
    if EXPERIMENT_FILE not in record.files and not (record.imported_from or record.recorded):
        yield f"{run / RUN_FILE}: records no {EXPERIMENT_FILE}, though the run was not imported"


def _not_accounted_for(made: Path, account: str) -> Iterator[str]:
    """Files of a stage that are there and that its account does not vouch for."""
    path = made / account
    listed = read_json(path)["files"] if path.exists() else {}
    for name in accounts.FILES[account]:
        if (made / name).exists() and name not in listed:
            yield f"{made / name}: there, but not listed in {account}"


def _unconfirmed_settings(run: Path) -> Iterator[str]:
    """Settings whose id cannot be computed here; BadInput if they are another experiment's."""
    for option in unknown_options(read_settings(run)):
        yield (
            f"{run / EXPERIMENT_FILE}: its settings cannot be held against its id without the "
            f"package of {option}; install it here"
        )


def _compute_again(
    run: Path, record: RunRecord, made: Path, stages: list[str]
) -> tuple[list[str], list[Verdict]]:
    """Collect and analyse again: how these stages' files in `made` differ, and the verdicts."""
    with scratch_directory() as again:
        try:
            if record.tracing or COLLECTED in stages:
                collect_run(run, again, perfetto=(made / PERFETTO).exists())
            analyse(run, again, tables_directory=again)
        except CannotWrite as error:
            raise KvscopeError(f"{error}; or set TMPDIR to a directory with room") from None
        differences = [d for stage in stages for d in stage_differences(made, again, stage)]
        return differences, read_verdicts(read_json(again / ANALYSED))

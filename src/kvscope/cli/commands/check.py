"""Check the files and the oracles of a run."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from kvscope.base.errors import EXIT_DONE, EXIT_FAILED
from kvscope.base.layout import EXPERIMENTS, MANIFEST
from kvscope.cli.commands.arguments import CONFIG_DIR, flag, path
from kvscope.cli.commands.command import command

if TYPE_CHECKING:
    from kvscope.report.check_run import CheckResult
    from kvscope.report.checking import Check


@command(
    ("results/experiments/*", "results/studies/NAME --brief"),
    path("runs", "a run's directory, or that of a planned study", nargs="+"),
    flag("--brief", "do not list every oracle"),
    flag("--quick", "do not compute tables and metrics again; trust their hashes"),
    CONFIG_DIR,
)
def check(given: argparse.Namespace) -> int:
    """Check results: files unchanged, settings of their id, every oracle, tables and metrics.

    Tables and metrics are computed again from the records, below $TMPDIR, and compared. Of a study,
    each run is checked, then the manifest against the plan, and the study's tables. Each core makes
    a check at a time; how long all take is said first.
    """
    from kvscope.report.checking import announcement, check_all
    from kvscope.run.display import Line

    checks = [one for place in given.runs for one in _checks(place, given)]
    complaints = 0
    with Line(sys.stderr) as line, closing(check_all(checks, line.show)) as results:
        if len(checks) > 1:
            line.say(f"kvscope: {announcement(checks)}")
        for one, result in zip(checks, results, strict=True):
            line.clear()
            _tell(one, result, given.brief)
            complaints += len(result.complaints)
    return EXIT_FAILED if complaints else EXIT_DONE


def _checks(place: Path, given: argparse.Namespace) -> "Iterator[Check]":
    """The checks of a run, or of a study's runs and then of the study."""
    from kvscope.plan import manifest
    from kvscope.report.checking import RunCheck, StudyCheck
    from kvscope.tables.runfile import RUN_FILE

    if not (place / MANIFEST).is_file():
        yield RunCheck(place, given.quick)
        return
    place = place if place.name else place.resolve()
    results = place.parent.parent
    ids = [entry["id"] for entry in manifest.read(place.name, results)["experiments"]]
    runs = [results / EXPERIMENTS / id_ for id_ in ids]
    yield from (RunCheck(run, given.quick) for run in runs if (run / RUN_FILE).exists())
    if not given.quick:
        yield StudyCheck(place, given.config_dir, len(runs))


def _tell(one: "Check", found: "CheckResult", brief: bool) -> None:
    """Print what a check has found."""
    from kvscope.judge.checklist import format_lines, summary
    from kvscope.report.checking import StudyCheck

    for complaint in found.complaints:
        print(f"kvscope: {complaint}", file=sys.stderr)
    if isinstance(one, StudyCheck) and not found.complaints:
        print(f"{one.study}: manifest and tables are those of its plan and its runs")
    if isinstance(one, StudyCheck) or not found.verdicts:
        return
    print(f"{one.run}: {summary(found.verdicts)}")
    if not brief:
        print("\n".join(format_lines(found.verdicts)))

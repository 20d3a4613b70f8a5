"""Check the files and the oracles of a run."""

import argparse
import sys
from pathlib import Path

from kvscope.commands.command import CONFIG_DIR, command, flag, path
from kvscope.errors import EXIT_DONE, EXIT_FAILED
from kvscope.layout import EXPERIMENTS, MANIFEST


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
    each run is checked, then the manifest against the plan, and the study's tables.
    """
    complaints = sum(_check(place, given) for place in given.runs)
    return EXIT_FAILED if complaints else EXIT_DONE


def _check(place: Path, given: argparse.Namespace) -> int:
    """Check a run or a study; the number of complaints, which are printed."""
    if not (place / MANIFEST).is_file():
        return _check_run(place, given)
    from kvscope.plan import manifest
    from kvscope.report.check_study import study_complaints
    from kvscope.runfile import RUN_FILE

    place = place if place.name else place.resolve()
    results = place.parent.parent
    ids = [entry["id"] for entry in manifest.read(place.name, results)["experiments"]]
    runs = [results / EXPERIMENTS / id_ for id_ in ids]
    complaints = sum(_check_run(run, given) for run in runs if (run / RUN_FILE).exists())
    found = [] if given.quick else list(study_complaints(place, given.config_dir))
    _tell(found)
    if not found and not given.quick:
        print(f"{place}: manifest and tables are those of its plan and its runs")
    return complaints + len(found)


def _check_run(run: Path, given: argparse.Namespace) -> int:
    from kvscope.analyse.check import inspect_run
    from kvscope.analyse.checklist import format_lines, summary

    found = inspect_run(run, given.quick)
    _tell(found.complaints)
    if found.verdicts:
        print(f"{run}: {summary(found.verdicts)}")
        if not given.brief:
            print("\n".join(format_lines(found.verdicts)))
    return len(found.complaints)


def _tell(complaints: list[str]) -> None:
    for complaint in complaints:
        print(f"kvscope: {complaint}", file=sys.stderr)

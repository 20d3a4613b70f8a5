"""Check the files and the oracles of a run."""

import argparse
import sys

from kvscope.commands.command import RUN_PATHS, command, flag
from kvscope.errors import EXIT_DONE, EXIT_FAILED


@command(("results/experiments/*",), RUN_PATHS, flag("--brief", "do not list every oracle"))
def check(given: argparse.Namespace) -> int:
    """Check a run: files unchanged, schemas correct, every oracle holds."""
    from kvscope.analyse.check import inspect_run
    from kvscope.analyse.checklist import format_lines, summary

    complaints = 0
    for run in given.runs:
        found = inspect_run(run)
        complaints += len(found.complaints)
        for complaint in found.complaints:
            print(f"kvscope: {complaint}", file=sys.stderr)
        if found.verdicts:
            print(f"{run}: {summary(found.verdicts)}")
            if not given.brief:
                print("\n".join(format_lines(found.verdicts)))
    return EXIT_FAILED if complaints else EXIT_DONE

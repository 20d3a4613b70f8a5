"""Compute the metrics of runs."""

import argparse
import json

from kvscope.base.errors import EXIT_DONE, BadInput
from kvscope.cli.commands.arguments import RUN_PATHS, flag, path
from kvscope.cli.commands.command import command


@command(
    ("results/experiments/ID", "results/experiments/* --json"),
    RUN_PATHS,
    flag("--json", "print the metrics as JSON"),
    path("--out", "default: results/tables/<id> of each run"),
)
def analyse(given: argparse.Namespace) -> int:
    """Compute the metrics of runs, with confidence intervals, and check whether they are valid."""
    from kvscope.base.layout import tables_directory
    from kvscope.metrics import experiment, show

    if given.out and len(given.runs) > 1:
        raise BadInput("analyse: --out names the directory of one run; leave it out for several")
    rows = []
    for run in given.runs:
        rows.append(experiment.analyse(run, given.out or tables_directory(run)))
        if not given.json:
            print(end="\n" if len(rows) > 1 else "")
            show.print_table(rows[-1])
    if given.json:
        print(json.dumps([show.as_json(metrics) for metrics in rows], indent=2, allow_nan=False))
    return EXIT_DONE

"""Compute the metrics of runs."""

import argparse
import json

from kvscope.commands.arguments import RUN_PATHS, flag, path
from kvscope.commands.command import command
from kvscope.errors import EXIT_DONE, BadInput


@command(
    ("results/experiments/ID", "results/experiments/* --json"),
    RUN_PATHS,
    flag("--json", "print the metrics as JSON"),
    path("--out", "default: results/tables/<id> of each run"),
)
def analyse(given: argparse.Namespace) -> int:
    """Compute the metrics of runs, with confidence intervals, and check whether they are valid."""
    from kvscope.analyse import experiment, show
    from kvscope.layout import tables_directory

    if given.out and len(given.runs) > 1:
        raise BadInput("analyse: --out names the directory of one run; leave it out for several")
    found = []
    for run in given.runs:
        found.append(experiment.analyse(run, given.out or tables_directory(run)))
        if not given.json:
            print(end="\n" if len(found) > 1 else "")
            show.print_table(found[-1])
    if given.json:
        print(json.dumps([show.as_json(metrics) for metrics in found], indent=2, allow_nan=False))
    return EXIT_DONE

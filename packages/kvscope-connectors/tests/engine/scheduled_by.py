"""Runs experiments and plans KV caches by the vLLM of this Python, all in one process.

    python scheduled_by.py DIRECTORY MODEL…

A line of standard input has a planned experiment's file and the directory of its run. DIRECTORY
gets the plan of each model, MODEL.json.
"""

import sys
from collections.abc import Iterable
from contextlib import redirect_stdout
from pathlib import Path

from kvscope.cli.batch import Job, run_one
from kvscope.cli.main import main as kvscope
from kvscope.plan.experiment import load


def make(directory: Path, models: Iterable[str], jobs: Iterable[str]) -> int:
    """Run these jobs and plan; 1 if something failed."""
    failed = 0
    for line in jobs:
        planned, run = line.strip().split("\t")
        if error := run_one(Job(load(Path(planned)), Path(run))):
            failed = 1
            print(error, file=sys.stderr)
    for model in models:
        with (directory / f"{model}.json").open("w") as file, redirect_stdout(file):
            failed |= kvscope(["bytes", model, "--gpu", "cpu", "--json"])
    return failed


if __name__ == "__main__":
    sys.exit(make(Path(sys.argv[1]), sys.argv[2:], sys.stdin))

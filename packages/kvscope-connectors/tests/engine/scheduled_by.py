"""Runs experiments and plans KV caches by the vLLM of this Python, all in one process.

    python scheduled_by.py DIRECTORY MODEL…

Standard input has the jobs of `kvscope.cli.batch`. DIRECTORY gets the plan of each model,
MODEL.json.
"""

import sys
from collections.abc import Iterable
from contextlib import redirect_stdout
from pathlib import Path

from kvscope.cli.batch import Job, run_each
from kvscope.cli.main import main as kvscope


def make(directory: Path, models: Iterable[str], jobs: Iterable[str]) -> int:
    """Run these jobs, lines of JSON, and plan; 1 if something failed."""
    failed = run_each([*map(Job.of_json, jobs)], sys.stderr)
    for model in models:
        with (directory / f"{model}.json").open("w") as file, redirect_stdout(file):
            failed |= kvscope(["bytes", model, "--json"])
    return failed


if __name__ == "__main__":
    sys.exit(make(Path(sys.argv[1]), sys.argv[2:], sys.stdin))

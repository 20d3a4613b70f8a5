"""Compare another simulator with a run."""

import argparse
import json

from kvscope.commands.command import argument, command, flag, path, whole
from kvscope.errors import EXIT_DONE


@command(
    ("steps.csv --run results/experiments/ID",),
    path("trace", "the steps of the other one, .csv or .json", metavar="TRACE"),
    path("--run", "the run", required=True),
    argument("--repeat", type=whole(0), default=0, metavar="N", help="default: 0"),
    flag("--json", "print the score as JSON"),
)
def score(given: argparse.Namespace) -> int:
    """Compare the steps of another simulator with a run of the same workload, step by step.

    It names the first step that differs, and compares victims, preemptions, recomputed tokens and
    durations. docs/SCORE.md has the format.
    """
    from kvscope.analyse.score.score import score

    found = score(given.trace, given.run, given.repeat)
    print(json.dumps(found.to_json, indent=2) if given.json else "\n".join(found.lines))
    return EXIT_DONE

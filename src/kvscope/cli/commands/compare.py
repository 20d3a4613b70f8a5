"""Compare two studies."""

import argparse
import json

from kvscope.base.errors import EXIT_DONE
from kvscope.cli.commands.arguments import RESULTS_DIR, argument, flag
from kvscope.cli.commands.command import command

COMPARED = "a study's name or directory, or a run's directory"


@command(
    ("results/studies/quickstart /other/results/studies/quickstart",),
    argument("first", metavar="A", help=COMPARED),
    argument("second", metavar="B", help=COMPARED),
    RESULTS_DIR,
    flag("--json", "print the comparison as JSON"),
)
def compare(given: argparse.Namespace) -> int:
    """Compare two studies, or one study in two results, or two runs: a verdict on each metric.

    A difference is one of disjoint 95 % confidence intervals.
    """
    from kvscope.report import compare

    sides = (compare.read(side, given.results) for side in (given.first, given.second))
    differences = compare.differences(*sides)
    if given.json:
        print(json.dumps(compare.as_json(differences), indent=2, allow_nan=False))
    else:
        print("\n".join(compare.lines(differences)))
    return EXIT_DONE

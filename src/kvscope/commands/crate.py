"""Describe a finished study as a research object."""

import argparse

from kvscope.commands.arguments import RESULTS_DIR, argument
from kvscope.commands.command import command
from kvscope.errors import EXIT_DONE


@command(
    ("quickstart",),
    argument("study", metavar="STUDY", help="a finished study's name"),
    RESULTS_DIR,
)
def crate(given: argparse.Namespace) -> int:
    """Write ro-crate-metadata.json: a finished study as a Workflow Run Crate."""
    from kvscope.report.crate import write_crate

    print(write_crate(given.study, given.results))
    return EXIT_DONE

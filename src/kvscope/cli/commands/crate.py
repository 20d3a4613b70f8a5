"""Describe a finished study as a research object."""

import argparse

from kvscope.base.errors import EXIT_DONE
from kvscope.cli.commands.arguments import RESULTS_DIR, argument
from kvscope.cli.commands.command import command


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

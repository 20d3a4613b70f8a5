"""Print where the shipped files are."""

import argparse

from kvscope.base.errors import EXIT_DONE
from kvscope.cli.commands.command import command
from kvscope.plan.layers import SHIPPED


@command(("",))
def shipped(given: argparse.Namespace) -> int:
    """Print the directory of the files that kvscope ships: config, Snakefile, profiles, envs."""
    print(SHIPPED)
    return EXIT_DONE

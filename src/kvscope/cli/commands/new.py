"""Write a study to start from."""

import argparse

from kvscope.base.errors import EXIT_DONE
from kvscope.cli.commands.arguments import CONFIG, argument, path, plan_command
from kvscope.cli.commands.command import command


@command(
    ("mine",),
    argument("name", metavar="NAME", help="letters, digits, '-' and '_'"),
    path("--config-dir", "write DIR/study/NAME.yaml (default: config)", default=CONFIG),
)
def new(given: argparse.Namespace) -> int:
    """Write a study to start from: a commented file config/study/NAME.yaml."""
    from kvscope.plan import new

    print(new.create_study(given.name, given.config_dir))
    print("next:", plan_command(given.name, given.config_dir))
    return EXIT_DONE

"""Write a study to start from."""

import argparse
import shlex

from kvscope.commands.command import CONFIG, argument, command, path
from kvscope.errors import EXIT_DONE


@command(
    ("mine",),
    argument("name", metavar="NAME", help="letters, digits, '-' and '_'"),
    path("--config-dir", "write DIR/study/NAME.yaml (default: config)", default=CONFIG),
)
def new(given: argparse.Namespace) -> int:
    """Write a study to start from: a commented file config/study/NAME.yaml."""
    from kvscope.plan import new

    print(new.create_study(given.name, given.config_dir))
    elsewhere = [] if given.config_dir == CONFIG else ["--config-dir", str(given.config_dir)]
    print("next:", shlex.join(["kvscope", "plan", f"study={given.name}", *elsewhere]))
    return EXIT_DONE

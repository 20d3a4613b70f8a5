"""Commands of the command line: a function, its arguments, and examples."""

import argparse
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from kvscope.cli.commands.arguments import Argument

Parsers: TypeAlias = "argparse._SubParsersAction[CommandParser]"
Function = Callable[[argparse.Namespace], int]

HELP_WIDTH = 78
AFTER_OWN = 1000  # place of a command without an order


class CommandParser(argparse.ArgumentParser):
    """A command's parser; unless `mixes` is off, it takes words and options in any order."""

    mixes = True

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse mixed words and options; argparse's method for these calls this method in turn.

        After `--` everything is a word; argparse's own method for mixed words ignores this.
        """
        if not self.mixes or "--" in (args or ()):
            return super().parse_known_args(args, namespace)
        self.mixes = False
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self.mixes = True


@dataclass(frozen=True)
class Command:
    """A command: its function takes the parsed arguments and returns the exit code.

    `order` is its place in `kvscope --help`, where kvscope's own stand at 10, 20, …
    """

    function: Function
    examples: Sequence[str]
    arguments: Sequence[Argument]
    order: int = AFTER_OWN

    @property
    def name(self) -> str:
        """The function's name; that of a keyword of Python ends with '_'."""
        return self.function.__name__.rstrip("_")

    def add_to(self, parsers: Parsers) -> None:
        """Add the command's parser; the function's docstring is the help."""
        text = " ".join(str(self.function.__doc__).split())
        examples = (f"kvscope {self.name} {example}".rstrip() for example in self.examples)
        parser = parsers.add_parser(
            self.name,
            help=text.split(".")[0].split(":")[0],
            description=textwrap.fill(text, HELP_WIDTH),
            epilog="\n  ".join(("examples:", *examples)),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.set_defaults(command=self.function)
        for names, options in self.arguments:
            parser.add_argument(*names, **options)


def command(
    examples: Sequence[str], *arguments: Argument, order: int = AFTER_OWN
) -> Callable[[Function], Command]:
    """Make a function the command of its name."""
    return lambda function: Command(function, examples, arguments, order)

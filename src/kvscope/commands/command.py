"""What a command of the command line is: a function, its arguments, and examples."""

import argparse
import math
import os
import re
import shlex
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from kvscope.layout import RESULTS
from kvscope.quantities import DURATIONS, parse_duration, parse_size

Parsers: TypeAlias = "argparse._SubParsersAction[CommandParser]"
Function = Callable[[argparse.Namespace], int]
T = TypeVar("T")
Argument = tuple[tuple[str, ...], dict[str, Any]]

CONFIG = Path("config")
HELP_WIDTH = 78
AFTER_OWN = 1000  # place of a command that names none
OVERRIDES_HELP = "settings in Hydra's grammar; config/README.md explains every key"


class CommandParser(argparse.ArgumentParser):
    """A command's parser; unless `mixes` is off, it takes words and options in any order."""

    mixes = True

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's for words and options that are mixed, which calls this one in turn.

        After `--` all are words, which argparse does not know of mixed ones.
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


def argument(*names: str, **options: Any) -> Argument:
    """An argument of a command, as for argparse's `add_argument`."""
    return names, options


def path(name: str, text: str | None = None, **options: Any) -> Argument:
    """An argument that is a path."""
    return argument(name, help=text, **{"type": place, "metavar": "DIR"} | options)


def flag(name: str, text: str, *short: str) -> Argument:
    """An argument without a value."""
    return argument(*short, name, action="store_true", help=text)


def whole(least: int) -> Callable[[str], int]:
    """A type for argparse: a whole number of at least `least`."""

    def number(text: str) -> int:
        if not re.fullmatch(r"[+-]?\d+", text) or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return int(text)

    return number


def positive(unit: str, below: float = math.inf) -> Callable[[str], float]:
    """A type for argparse: a number of this unit above 0."""

    def number(text: str) -> float:
        try:
            found = float(text)
        except ValueError:
            found = math.nan
        if not 0 < found < below:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of {unit} above 0")
        return found

    return number


def size(unit: str = "B", least: int = 1) -> Callable[[str], int]:
    """A type for argparse: bytes of a size; a number alone is in `unit`."""
    return _argument_type(lambda text: parse_size(text, unit, least))


def duration(unit: str = "s") -> Callable[[str], float]:
    """A type for argparse: a duration in `unit`, in which a number alone is, too."""
    return _argument_type(lambda text: parse_duration(text, unit) / float(DURATIONS[unit]))


def _argument_type(parse: Callable[[str], T]) -> Callable[[str], T]:
    """The function as a type for argparse, which shows the sentence of its ValueError."""

    def parsed(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


def plan_command(study: str, config_dir: Path) -> str:
    """The command that plans a study of a directory."""
    elsewhere = [] if config_dir == CONFIG else ["--config-dir", str(config_dir)]
    return shlex.join(["kvscope", "plan", f"study={study}", *elsewhere])


def place(text: str) -> Path:
    """A path (a type for argparse); one that is empty, as of a variable that is not set, is none.

    Python takes it for the working directory, where results would be written over other files.
    """
    if not text:
        raise argparse.ArgumentTypeError("the path is empty; the working directory is '.'")
    return Path(text)


def directory(text: str) -> Path:
    """A path that must be an existing directory (a type for argparse)."""
    if not os.path.isdir(place(text)):  # also a name that is too long is none
        raise argparse.ArgumentTypeError(f"{text!r} is not a directory")
    return Path(text)


RUN_PATHS = path("runs", "a run's directory", nargs="+")
CONFIG_DIR = path(
    "--config-dir",
    "directory of studies and options (default: config); it takes precedence over the "
    "configuration that kvscope ships",
    type=directory,
    default=CONFIG,
)
RESULTS_DIR = path("--results", default=RESULTS)

"""Arguments of commands: what they are, the types of their values, and those that several have."""

import argparse
import math
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kvscope.base.errors import BadInput
from kvscope.base.layout import RESULTS
from kvscope.base.quantities import (
    DURATIONS,
    parse_count,
    parse_duration,
    parse_number,
    parse_size,
)

if TYPE_CHECKING:
    from kvscope.collect.foreign import Stretch

T = TypeVar("T")
Argument = tuple[tuple[str, ...], dict[str, Any]]

CONFIG = Path("config")
OVERRIDES_HELP = "settings in Hydra's grammar; config/README.md explains every key"


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
    return _argument_type(lambda text: parse_count(text, least))


def positive(unit: str, below: float = math.inf) -> Callable[[str], float]:
    """A type for argparse: a number of this unit above 0."""
    return _argument_type(lambda text: parse_number(text, unit, below))


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


def place(text: str) -> Path:
    """A path (a type for argparse); an empty path, such as an unset variable gives, is refused.

    Python takes it for the working directory, where results would be written over other files.
    """
    if not text:
        raise argparse.ArgumentTypeError("the path is empty; the working directory is '.'")
    return Path(text)


def directory(text: str) -> Path:
    """A path that must be an existing directory (a type for argparse)."""
    if not os.path.isdir(place(text)):  # also for a name that is too long
        raise argparse.ArgumentTypeError(f"{text!r} is not a directory")
    return Path(text)


def plan_command(study: str, config_dir: Path) -> str:
    """The command that plans a study of a directory."""
    elsewhere = [] if config_dir == CONFIG else ["--config-dir", str(config_dir)]
    return shlex.join(["kvscope", "plan", f"study={study}", *elsewhere])


RUN_PATHS = path("runs", "a run's directory", nargs="+")
CONFIG_DIR = path(
    "--config-dir",
    "directory of studies and options (default: config); it takes precedence over the "
    "configuration that kvscope ships",
    type=directory,
    default=CONFIG,
)
RESULTS_DIR = path("--results", default=RESULTS)


STRETCH = (
    argument(
        "--last", type=duration(), metavar="DURATION", help="of a recording: so much, as 10min"
    ),
    argument("--from", dest="since", metavar="TIME", help="of a recording: by the server's clock"),
    argument("--to", dest="until", metavar="TIME", help="as 14:10, or 2026-11-28T14:10:30"),
    argument(
        "--around", type=whole(0), metavar="REQUEST", help="of a recording: a minute on each side"
    ),
    argument("--session", type=whole(1), metavar="N", help="of a recording: a start of the server"),
)
"""Options that choose a stretch of a recording."""


def stretch_of(given: argparse.Namespace) -> "Stretch":
    """The stretch that options choose; BadInput if they contradict one another."""
    from kvscope.collect.foreign import Stretch

    between = given.since is not None or given.until is not None
    if (given.last is not None) + between + (given.around is not None) > 1:
        raise BadInput("give one of --last, --from with --to, and --around")
    return Stretch(given.last, given.since, given.until, given.around, given.session)

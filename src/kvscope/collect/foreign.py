"""Directories of files that kvscope did not write, which become runs: `kvscope collect DIRECTORY`.

A package registers a `Collector` in the entry-point group `kvscope.collector`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvscope.base import plugins
from kvscope.base.errors import BadInput

GROUP = "kvscope.collector"


@dataclass(frozen=True)
class Stretch:
    """The part of a long recording to show; without any option that of the collector's choice."""

    last_s: float | None = None  # before its end
    since: str | None = None  # a time of day
    until: str | None = None
    around: int | None = None  # number of a request
    session: int | None = None  # number of the server's start


WHOLE = Stretch()
"""No choice of a stretch."""


@dataclass(frozen=True)
class Collector:
    """Makes the records of a run from files of one kind.

    `recognises` says whether a directory has such files. `make` writes a run's host tables and
    run.json into it, of a stretch of what they hold, and returns what is not in them, a sentence
    each; it raises BadInput if the files are damaged.
    """

    recognises: Callable[[Path], bool]
    make: Callable[[Path, Stretch], list[str]]


def make_records(directory: Path, stretch: Stretch = WHOLE) -> list[str]:
    """Make the records of a run if a collector recognises the directory's files, else do nothing.

    Returns what is not in them, a sentence each. BadInput if two collectors recognise them.
    """
    collectors = {name: plugins.load(GROUP, name, Collector) for name in plugins.names(GROUP)}
    names = [name for name, collector in collectors.items() if collector.recognises(directory)]
    if len(names) > 1:
        raise BadInput(
            f"{directory} has files of {' and '.join(names)}, collectors of installed packages: "
            "leave those of one there"
        )
    if not names and stretch != WHOLE:
        raise BadInput(f"{directory}: has no recording, of which a stretch could be chosen")
    return collectors[names[0]].make(directory, stretch) if names else []

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
class Collector:
    """Makes the records of a run from files of one kind.

    `recognises` says whether a directory has such files. `make` writes a run's host tables and
    run.json into it, and returns what is not in them, a sentence each; it raises BadInput if the
    files are damaged.
    """

    recognises: Callable[[Path], bool]
    make: Callable[[Path], list[str]]


def make_records(directory: Path) -> list[str]:
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
    return collectors[names[0]].make(directory) if names else []

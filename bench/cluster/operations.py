"""Metadata operations on files below a directory, as Python's own audit events count them."""

import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

# Audit events that are an operation on names; the position of the path in their arguments.
EVENTS = {
    "open": 0,
    "os.listdir": 0,
    "os.mkdir": 0,
    "os.remove": 0,
    "os.rename": 0,
    "os.rmdir": 0,
    "os.scandir": 0,
}


def count(root: Path, note: Callable[[str], None]) -> None:
    """Call `note` with the event of every operation below a directory, from now on.

    A hook cannot be removed: it stays as long as the process.
    """
    prefix = os.fspath(root) + os.sep

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event in EVENTS:
            path = arguments[EVENTS[event]]
            if isinstance(path, str | os.PathLike) and os.fspath(path).startswith(prefix):
                note(event)

    sys.addaudithook(hook)


class Operations:
    """Counts of this process's operations below a directory."""

    def __init__(self, root: Path) -> None:
        self.counts: Counter[str] = Counter()
        count(root, lambda event: self.counts.update((event,)))

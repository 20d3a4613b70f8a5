"""Failures at a chosen operation on files, as a killed process or a full disk has them.

Python's audit events come before an operation: what a fault raises there, the operation does not
do. There are operations that a test cannot name; so faults are counted, not named.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OPERATIONS = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.listdir", "os.scandir"}


class Faults:
    """Counts the operations below a directory, and lets one of them fail."""

    def __init__(self) -> None:
        self.root, self.left, self.seen = "", 0, 0
        self.error: BaseException | None = None
        self.is_armed = False
        sys.addaudithook(self._hook)  # for good: it does nothing outside of `at`

    def _hook(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self.is_armed or event not in OPERATIONS:
            return
        path = arguments[0]
        if isinstance(path, str | os.PathLike) and os.fspath(path).startswith(self.root):
            self.seen += 1
            self.left -= 1
            if self.left == 0 and self.error is not None:
                raise self.error

    def prepare(self, root: Path, number: int, error: BaseException) -> None:
        """Let the operation of this number below `root`, counted from 1, raise an error."""
        self.root, self.left, self.seen, self.error = os.fspath(root), number, 0, error

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Count, and fail, what happens here only."""
        self.is_armed = True
        try:
            yield
        finally:
            self.is_armed = False


FAULTS = Faults()

"""Displays progress: a line that replaces itself on a terminal, lines now and then elsewhere."""

import math
import time
from pathlib import Path
from typing import Self, TextIO

from kvscope.base.files import make_directory

SECONDS_BETWEEN_LINES = 15.0
CLEAR = "\r\033[K"


class Line:
    """One line of progress on a terminal, replaced by the next; elsewhere a line now and then.

    `log` is a file that has every line. A `patient` one is shown elsewhere only if there are lines
    for a while.
    """

    def __init__(self, out: TextIO, log: Path | None = None, patient: bool = False) -> None:
        self._out, self._terminal = out, out.isatty()
        self._log_path = log
        self._log: TextIO | None = None
        self._shown_at = time.monotonic() if patient else -math.inf

    def __enter__(self) -> Self:
        if self._log_path is not None:
            make_directory(self._log_path.parent)
            self._log = self._log_path.open("w", encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()
        if self._log is not None:
            self._log.close()

    def show(self, words: str) -> None:
        """Show words in place of those before."""
        self._write_log(words)
        now = time.monotonic()
        if self._terminal:
            print(f"{CLEAR}{words}", end="", file=self._out, flush=True)
        elif now - self._shown_at > SECONDS_BETWEEN_LINES:
            print(words, file=self._out, flush=True)
            self._shown_at = now

    def note(self, words: str) -> None:
        """A line that a terminal does not need."""
        self._write_log(words)
        if not self._terminal:
            print(words, file=self._out, flush=True)

    def say(self, words: str) -> None:
        """Print a line that stays above the progress."""
        self.clear()
        self._write_log(words)
        print(words, file=self._out, flush=True)

    def clear(self) -> None:
        """Clear the line, before another stream prints to the same terminal."""
        if self._terminal:
            print(CLEAR, end="", file=self._out, flush=True)

    def _write_log(self, words: str) -> None:
        if self._log is not None:
            print(words, file=self._log, flush=True)

"""Displays a run's progress: a bar with the remaining time, or lines without a terminal."""

import math
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from kvscope.base.files import make_directory

SECONDS_BETWEEN_LINES = 15.0
CLEAR = "\r\033[K"


class Line:
    """One line of progress on a terminal, replaced by the next; elsewhere a line now and then.

    `log` is a file that has every line.
    """

    def __init__(self, out: TextIO, log: Path | None = None) -> None:
        self._out, self._terminal = out, out.isatty()
        self._log_path = log
        self._log: TextIO | None = None
        self._shown_at = -math.inf

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


class Display:
    """Shows `done` of `total` output tokens; on a terminal as a bar, elsewhere as lines."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
        )
        self._task = self._bar.add_task(name, total=None)
        self._phase = ""
        self._line_at = 0.0

    def __enter__(self) -> "Display":
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def show(self, done: int, total: int, phase: str) -> None:
        """Show the phase of the run, with `done` of `total` output tokens."""
        self._bar.update(
            self._task, completed=done, total=total or None, description=f"{self._name}  {phase}"
        )
        now = time.monotonic()
        due = phase != self._phase or now - self._line_at > SECONDS_BETWEEN_LINES
        if self._bar.disable and due:
            share = f"{100 * done / total:.0f} %" if total else ""
            print(f"{self._name}: {phase} {share}".rstrip(), file=sys.stderr, flush=True)
            self._phase, self._line_at = phase, now

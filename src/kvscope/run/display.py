"""Displays a run's progress: a bar with the remaining time, or lines without a terminal."""

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

SECONDS_BETWEEN_LINES = 15.0


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

"""Records the tables that other packages add to a run, each by an observer of its own."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pkgutil import resolve_name
from typing import Any

from kvscope.engine.marks import Marks
from kvscope.engine.observer import Recorder, SchedulerObserver
from kvscope.engine.recording import Recording
from kvscope.tables.added import added_tables

Seconds = Callable[[int], float]
"""Seconds since the start of the repeat, of an instant of the engine's clock in nanoseconds."""


class RowRecorder(Recorder, ABC):
    """Takes what is observed of a scheduler in one repeat, and makes rows of it."""

    @abstractmethod
    def rows(self, seconds: Seconds) -> Iterable[Mapping[str, Any]]:
        """The rows of the table: `step`, the other keys, told and witnessed columns."""


class AddedRecorders:
    """The recorders of all tables of other packages, for one scheduler."""

    def __init__(self, scheduler: Any, now_ns: Callable[[], int]) -> None:
        self._kinds = {name: resolve_name(one.recorder) for name, one in added_tables().items()}
        self._observers = {
            name: SchedulerObserver(scheduler, kind(), now_ns) for name, kind in self._kinds.items()
        }

    def begin(self, recording: Recording) -> None:
        """Record into `recording` from now on, by new recorders."""
        for name, observer in self._observers.items():
            observer.recorder = recording.added[name] = self._kinds[name]()
            observer.begin(Marks())

"""Records the rows of packages' tables during a run, each by its own observer."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from pkgutil import resolve_name
from typing import Any

from kvscope.base.errors import BadInput
from kvscope.base.reading import describe_error
from kvscope.engine.marks import Marks
from kvscope.engine.observer import Recorder, SchedulerObserver, Take
from kvscope.engine.recording import Recording
from kvscope.tables.added import AddedTable, added_tables
from kvscope.tables.added_values import blamed, words_of

Seconds = Callable[[int], float]
"""Converts an instant of the engine's clock in nanoseconds to seconds since the start of the
repeat.
"""


class RowRecorder(Recorder, ABC):
    """Observes a scheduler for one repeat, and makes rows of a table from that."""

    @abstractmethod
    def rows(self, seconds: Seconds) -> Iterable[Mapping[str, Any]]:
        """The rows of the table: `step`, the other keys, told and witnessed columns."""


class AddedRecorders:
    """The recorders of all tables of other packages, for one scheduler.

    BadInput if a table names what is no recorder.
    """

    def __init__(self, scheduler: Any, now_ns: Callable[[], int]) -> None:
        recorded = {name: added for name, added in added_tables().items() if added.recorder}
        self._kinds = {name: _recorder_of(added) for name, added in recorded.items()}
        self._observers = {
            name: SchedulerObserver(scheduler, _Nobody(added), now_ns)
            for name, added in recorded.items()
        }

    def begin(self, recording: Recording) -> None:
        """Record into `recording` from now on, by new recorders."""
        for name, observer in self._observers.items():
            observer.recorder = recording.added[name] = self._kinds[name]()
            observer.begin(Marks())


class _Nobody(Recorder):
    """A recorder without a repeat: it takes nothing."""

    def __init__(self, added: AddedTable) -> None:
        self._added = added

    def guarded(self, take: Take) -> Take:
        added = self._added

        @wraps(take)
        def taking(*args: Any, **kwargs: Any) -> None:
            try:  # no more, since passes are measured meanwhile
                take(*args, **kwargs)
            except (Exception, SystemExit):
                with blamed(added, f"recorder {added.recorder}"):
                    raise

        return taking


def _recorder_of(added: AddedTable) -> type[RowRecorder]:
    """The class that a table names, of which a recorder can be made."""
    must = "which must name a class of kvscope.engine.added.RowRecorder, made without arguments"
    try:
        class_ = resolve_name(added.recorder)
        if isinstance(class_, type) and issubclass(class_, RowRecorder):
            class_()
            return class_
    except (Exception, SystemExit) as error:  # whatever a module of another package raises
        must += f" ({describe_error(error)})"
    raise BadInput(
        f"{words_of(added)} has the recorder {added.recorder!r}, {must}; fix its package"
    )

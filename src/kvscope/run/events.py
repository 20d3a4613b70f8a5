"""Recording the KV events of a run, where its engine has a tracer."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from kvscope.engine.recording import Recording
from kvscope.plan.experiment import Experiment
from kvscope.plan.tracing import PassTracer, installed_tracing
from kvscope.run.recorder import RepeatTables

__all__ = ["EventRecorder", "RepeatTables", "recorder_of"]


class EventRecorder:
    """Recorder of a run's KV events, repeat by repeat; this class records nothing."""

    def resume(self, earlier: dict[str, Any] | None, start_ns: int) -> None:
        """Go on counting where an earlier process of the run ended; `earlier` are its `facts`."""

    @contextmanager
    def record(self) -> Iterator[None]:
        """Within the context KV events are traced; they can be written until the next call."""
        yield

    def write(self, number: int, recording: Recording, repeat: RepeatTables) -> None:
        """Append a repeat's events to the run's file, when nothing is timed."""

    def facts(self, start_ns: int) -> dict[str, Any]:
        """The entry `tracing` of run.json; `start_ns` is the run's start on the host's clock."""
        return {}


def recorder_of(
    experiment: Experiment, tracer: PassTracer | None, directory: Path
) -> EventRecorder:
    """The recorder of an engine with this tracer."""
    if tracer is None:
        return EventRecorder()
    kind = resolve_name(installed_tracing().recorder)
    recorder: EventRecorder = kind(experiment, tracer, directory)
    return recorder

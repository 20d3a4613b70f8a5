"""Tracing of KV events: a package registers a `Tracing` in the entry-point group `kvscope.tracer`.

At most one is installed. Without one `tracing` must be `none`, and nothing else is asked of it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kvscope.base import plugins
from kvscope.base.errors import BadInput
from kvscope.plan.tracers import GROUP, PACKAGE

if TYPE_CHECKING:
    from kvscope.plan.experiment import Experiment


class PassTracer(Protocol):
    """Traces the passes of one engine."""

    def begin_pass(self, step: int) -> bool:
        """Begin a pass; returns whether it is traced."""

    def end_pass(self) -> None:
        """End a pass."""

    def close(self) -> None:
        """Free what the tracer holds."""


class EventsOnDisk(NamedTuple):
    """Bytes of the KV events of one repeat: while it is recorded, and as they are kept."""

    spool_bytes: int = 0
    stored_bytes: int = 0


@dataclass(frozen=True)
class Tracing:
    """A package's means of tracing KV events; only engines import what is named 'module:Name'.

    `on_disk` estimates the events of a traced experiment on a GPU. `backends` has the class, as
    vLLM takes it, of the attention INSTRUMENTED on a device, by the device's name. `tracer` is a
    function of a platform and a directory for temporary files that gives a `PassTracer` of such a
    device. `recorder` is a subclass of `kvscope.run.events.EventRecorder`, made of an experiment,
    its engine's tracer and the run's directory.
    """

    on_disk: "Callable[[Experiment], EventsOnDisk]"
    backends: Mapping[str, str]
    tracer: str
    recorder: str

    def open_tracer(self, platform: Any, directory: Path) -> PassTracer:
        """The tracer of a platform's engine."""
        tracer: PassTracer = resolve_name(self.tracer)(platform, directory)
        return tracer


def installed_tracing() -> Tracing:
    """The installed package's; BadInput unless one package registers it."""
    names = plugins.names(GROUP)
    if len(names) != 1:
        raise BadInput(
            f"KV events are traced by one installed package, {PACKAGE}, which registers {GROUP}; "
            f"there are {', '.join(names) or 'none'}"
        )
    return plugins.load(GROUP, names[0], Tracing)


def events_on_disk(experiment: "Experiment") -> EventsOnDisk:
    """The bytes of a repeat's events; 0 without tracing."""
    if experiment.tracing.name == "none":
        return EventsOnDisk()
    return installed_tracing().on_disk(experiment)

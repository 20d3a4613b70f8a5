"""What a device is to an engine, and to the process that runs it."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar

from kvscope.engine.clock import Clock, HostClock
from kvscope.plan.experiment import Experiment
from kvscope.runschema import MEASURED

if TYPE_CHECKING:
    from kvscope.engine.attention.tracer import Tracer


class Platform:
    """A device of one engine. Its module is imported where vLLM is not: vLLM only in methods.

    `backends` has kvscope's own attention by engine.attention, registered with vLLM in place of
    its backend `slot`. Of copies that are `awaited` the host sees how long they take.
    """

    time_source: ClassVar[str] = MEASURED
    slot: ClassVar[str] = "CUSTOM"
    backends: ClassVar[Mapping[str, str]] = {}
    awaited: ClassVar[bool] = True
    profiler_options: ClassVar[tuple[str, ...]] = ("--trace=nvtx",)

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.clock: Clock = HostClock()

    @property
    def backend(self) -> str | None:
        """The class of kvscope's own attention that the experiment takes; None of vLLM's."""
        return self.backends.get(self.experiment.engine.attention)

    def run_engine(self, directory: Path) -> AbstractContextManager[Any]:
        """The engine of the experiment, until the end of a `with` block: vLLM's."""
        from kvscope.engine.build import run_engine

        return run_engine(self.experiment, directory, self)

    def environment(self) -> dict[str, str]:
        """Variables of the process that runs the engine, beside those of every run."""
        return {}

    def engine_arguments(self) -> dict[str, Any]:
        """What it adds to vLLM's `EngineArgs`."""
        return {}

    def tracer(self, directory: Path) -> "Tracer":
        """The tracer of KV events; a file in `directory` takes them as they come."""
        raise NotImplementedError

    def timed(self, copy: Callable[[], None]) -> Callable[[], float]:
        """Run a copy; returns what tells its seconds once the pass is over."""
        start_ns = self.clock.now_ns()
        copy()
        duration_s = (self.clock.now_ns() - start_ns) * 1e-9
        return lambda: duration_s

    def accelerators(self) -> list[dict[str, Any]]:
        """The devices beside the CPU: `name` and `memory_bytes` of each."""
        return []


def platform_of(experiment: Experiment) -> Platform:
    """The platform of the experiment's device, made for it."""
    made: Platform = resolve_name(experiment.device.platform)(experiment)
    return made

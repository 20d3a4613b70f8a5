"""The engine's interface to a device."""

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar

from kvscope.base.time_sources import BY_CLOCK
from kvscope.engine.clock import Clock, HostClock
from kvscope.plan.experiment import Experiment
from kvscope.plan.tracers import INSTRUMENTED
from kvscope.plan.tracing import PassTracer, installed_tracing
from kvscope.tables.copies import HOST_CLOCK, VIRTUAL_CLOCK

if TYPE_CHECKING:
    from kvscope.engine.current import CurrentRecording


class Platform:
    """A device of one engine. vLLM is imported inside of methods only.

    `backends` maps engine.attention to the class of kvscope's attention, which is registered with
    vLLM in place of its backend `slot`; that of INSTRUMENTED is the tracing package's.
    `worker_modules` are what an engine imports of its device, to be imported before engines are
    forked; importing them must not initialize the device.
    """

    slot: ClassVar[str] = "CUSTOM"
    backends: ClassVar[Mapping[str, str]] = {}
    worker_modules: ClassVar[tuple[str, ...]] = ()
    profiler_options: ClassVar[tuple[str, ...]] = ("--trace=nvtx",)

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.clock: Clock = HostClock()
        self.copy_cpu_ns = 0

    @property
    def time_source(self) -> str:
        """The source of a run's times, as run.json and its tables have it."""
        return self.experiment.device.time_source

    @property
    def by_clock(self) -> bool:
        """Whether times are of a real clock, which ticks while the engine works."""
        return self.time_source in BY_CLOCK

    @property
    def copy_clock(self) -> str:
        """The clock that `timed` counts the seconds of a copy by."""
        return HOST_CLOCK if self.by_clock else VIRTUAL_CLOCK

    @property
    def backend(self) -> str | None:
        """The class of kvscope's attention that the experiment uses; None for vLLM's attention."""
        attention = self.experiment.engine.attention
        if attention == INSTRUMENTED and attention not in self.backends:
            return installed_tracing().backends[self.experiment.device.name]
        return self.backends.get(attention)

    @abstractmethod
    def run_engine(self, directory: Path) -> AbstractContextManager[Any]:
        """The engine of the experiment (`kvscope.engine.port`), until the end of a `with` block."""

    def require(self) -> None:
        """Raise BadInput where this process cannot compute on the device."""

    def environment(self) -> dict[str, str]:
        """Additional environment variables of the process that runs the engine."""
        return {}

    def engine_arguments(self) -> dict[str, Any]:
        """Additional arguments for vLLM's `EngineArgs`."""
        return {}

    def tracer(self, directory: Path) -> PassTracer:
        """Make the tracer of KV events, with a temporary file in `directory`."""
        return installed_tracing().open_tracer(self, directory)

    def host_pool(self) -> dict[str, Any]:
        """Memory of the host pool and pieces of a block, on a device that does not compute."""
        return {"host_memory": None, "pieces_per_block": None}

    def observe(self, scheduler: Any, recorder: "CurrentRecording") -> None:
        """Hook: called with the engine's scheduler and recorder before the first pass."""

    def after_pass(self) -> None:
        """Hook: called after vLLM has processed the output of a pass."""

    def shut_down(self, llm: Any) -> None:
        """End an engine and free what it holds."""
        llm.llm_engine.engine_core.shutdown()

    def timed(self, copy: Callable[[], None]) -> Callable[[], float]:
        """Run a copy; returns a function that gives its seconds once the pass is over.

        `copy_cpu_ns` adds up the CPU time of this thread in all copies. It is read within the
        seconds, which it therefore cannot exceed at any speed.
        """
        start_ns, cpu_ns = self.clock.now_ns(), time.thread_time_ns()
        copy()
        cpu_ns = time.thread_time_ns() - cpu_ns
        duration_s = (self.clock.now_ns() - start_ns) * 1e-9
        self.copy_cpu_ns += cpu_ns
        return lambda: duration_s

    def accelerators(self) -> list[dict[str, Any]]:
        """The devices beside the CPU: `name` and `memory_bytes` of each."""
        return []


def platform_of(experiment: Experiment) -> Platform:
    """The platform of the experiment's device, made for it."""
    platform: Platform = resolve_name(experiment.device.platform)(experiment)
    return platform

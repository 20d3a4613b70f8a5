"""What an engine needs of a tracer: `tracer` is the one for a CPU, `gpu_tracer` for a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from kvscope.plan.experiment import Experiment


class Selection:
    """Which passes, layers and KV heads of an experiment are traced."""

    def __init__(self, experiment: Experiment) -> None:
        tracing, model = experiment.tracing, experiment.model
        self.step_stride, self.layer_stride = tracing.step_stride, tracing.layer_stride
        self.head_stride, self.buffer_events = tracing.head_stride, tracing.buffer_events
        self.layers = list(range(0, model.layers, self.layer_stride))
        self.kv_heads = list(range(0, model.kv_heads, self.head_stride))


class Clock(Protocol):
    """The clock that kernels stamp events with."""

    def sample(self) -> Any:
        """One instant on this clock and on the host's."""

    def described(self, samples: list[Any], start_ns: int) -> dict[str, Any]:
        """The clock as run.json has it; `start_ns` is the run's start on the host's clock."""


class Tracing(Protocol):
    """The tracing of one engine. `passes` holds what was traced since `clear`."""

    layers: list[int]
    kv_heads: list[int]
    workers: int
    tile_tokens: int
    clock: Clock
    passes: list[Any]  # each with its `step`

    @property
    def waited_s(self) -> float:
        """Seconds that passes waited for a free buffer."""

    def begin_pass(self, step: int) -> bool:
        """A pass begins; whether it is traced."""

    def end_pass(self) -> None:
        """The pass is over; its events leave off the critical path."""

    def finish(self) -> None:
        """Wait until everything that was recorded can be read."""

    def flushes(self, traced: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        """Each traced layer of a pass, and what its kernels recorded."""

    def clear(self) -> None:
        """Forget all traced passes."""

    def close(self) -> None:
        """Free what it holds."""


# The tracer of the engine that is being built: its layers take it up when they are made.
_building: Tracing | None = None


@contextmanager
def building_with(tracer: Tracing | None) -> Iterator[None]:
    """Attention layers made inside are traced by `tracer`."""
    global _building
    before, _building = _building, tracer
    try:
        yield
    finally:
        _building = before


def of_engine_being_built() -> Tracing | None:
    """The tracer for a layer that is being made; None if it is not to be traced."""
    return _building

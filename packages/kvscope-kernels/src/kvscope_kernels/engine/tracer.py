"""The tracer of KV events: selects forward passes, layers and KV heads, and reads their records.

The scheduler marks the begin and end of a pass. On a device that computes, the attention backend
opens it with the batch's sizes and passes segments to the kernels; events are stored in a file
while the engine runs (`spool`) and read between repeats (`kvscope_kernels.engine.kernel_events`).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from kvscope.api.experiments import Experiment
from kvscope.api.tables import runfile
from kvscope_kernels.engine.clock import TickClock
from kvscope_kernels.engine.flush import Launch, build_flush
from kvscope_kernels.engine.spool import Buffer, Spool


@dataclass
class TracedPass:
    """The launches of one traced pass, and the offsets of their events in the spool (bytes)."""

    step: int
    launches: list[Any] = field(default_factory=list)  # as the device's tracer notes them
    begins: Any = ()  # set when its buffer is stored


class Tracer(ABC):
    """The tracer of one engine; `passes` holds the passes traced since `clear`.

    `workers` is the number of threads or processors that write events, `tile_tokens` the most
    queries that read a block together.
    """

    def __init__(self, experiment: Experiment, clock: TickClock, workers: int = 0) -> None:
        tracing, model = experiment.tracing, experiment.model
        self.step_stride, self.layer_stride = tracing.step_stride, tracing.layer_stride
        self.head_stride = tracing.head_stride
        self.layers = list(range(0, model.layers, self.layer_stride))
        self.kv_heads = list(range(0, model.kv_heads, self.head_stride))
        self.clock, self.workers, self.tile_tokens = clock, workers, 0
        self.passes: list[TracedPass] = []
        self._step: int | None = None  # of the pass under way, if it is traced
        self._pass: TracedPass | None = None

    @property
    def waited_s(self) -> float:
        """Seconds that passes waited for the tracer."""
        return 0.0

    def begin_pass(self, step: int) -> bool:
        """Begin a pass; returns whether it is traced."""
        self._step = step if step % self.step_stride == 0 else None
        return self._step is not None

    def end_pass(self) -> None:
        """End a pass; its events are stored off the critical path."""
        if self._pass is not None:
            self.passes.append(self._pass)
        self._step = self._pass = None

    @abstractmethod
    def launches(self, traced: TracedPass) -> list[Launch]:
        """The records of a pass's launches, in order."""

    def flushes(self, traced: TracedPass) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield each traced layer of a pass with its flush (`flush.build_flush`)."""
        for layer, group in groupby(self.launches(traced), key=lambda launch: launch.layer):
            yield layer, build_flush(list(group))

    def finish(self) -> None:  # noqa: B027
        """Wait until all recorded events can be read."""

    def clear(self) -> None:
        """Forget all traced passes."""
        self.passes = []

    def close(self) -> None:  # noqa: B027
        """Free what the tracer holds."""


class SpooledTracer(Tracer):
    """A tracer whose events kernels write to buffers, which are stored in a file."""

    def __init__(
        self,
        experiment: Experiment,
        clock: TickClock,
        directory: Path,
        buffers: Sequence[Buffer],
        workers: int = 0,
    ) -> None:
        super().__init__(experiment, clock, workers)
        self._spool = Spool(directory / runfile.SPOOL, buffers)
        self._buffer: Any = None  # of the device, that the pass under way writes to

    @property
    def waited_s(self) -> float:
        """Seconds that passes waited for a free buffer."""
        return self._spool.waited_s

    def finish(self) -> None:
        """Wait until all recorded events can be read."""
        self._hand_over()
        self._spool.finish()

    def clear(self) -> None:
        """Forget all traced passes."""
        self.finish()
        self._spool.restart()
        super().clear()

    def close(self) -> None:
        """Close the spool and remove its file."""
        self._spool.close()

    def _hand_over(self) -> None:
        """Give the current buffer to the background thread."""
        if self._buffer is not None:
            self._spool.give(self._buffer)
        self._buffer = None

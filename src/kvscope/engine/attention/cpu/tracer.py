"""Which passes, layers and heads are traced on a CPU, and what is known of each traced kernel.

The scheduler tells when a pass begins and ends, the attention backend asks for segments to write
to. What was recorded is read between repeats (`kvscope.run.kernel_events`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kvscope.engine.attention.cpu.buffer import DROPPED, USED, Buffer, Counts, Drain
from kvscope.engine.attention.flush import Events, Part, cut, of_kernels
from kvscope.engine.attention.tracing import Clock, Selection
from kvscope.plan.experiment import Experiment
from kvscope.runfile import SPOOL

COUNTS = 2  # columns of a counter that say something
NOWHERE = np.zeros(0, np.int64)


class Segments(NamedTuple):
    """Where one kernel writes its events."""

    events: Any  # (workers, capacity, 4) uint64
    counters: Any  # (workers, 8) int64
    layer: int
    head_stride: int


class TracedKernel(NamedTuple):
    """One kernel of a traced pass; instants in ticks, seen by who launched it."""

    layer: int
    kernel: str
    start_ticks: int
    end_ticks: int
    counters: Counts  # of each segment when it had run


@dataclass
class TracedPass:
    """The kernels of one traced pass, and where their events lie in the file."""

    step: int
    first: Counts  # the counters before it
    kernels: list[TracedKernel] = field(default_factory=list)
    places: Counts = field(default_factory=lambda: NOWHERE)  # of each worker's events, in events


class Tracer(Selection):
    """The tracing of one engine. `passes` holds what was traced since `clear`."""

    def __init__(self, experiment: Experiment, workers: int, directory: Path, clock: Clock) -> None:
        super().__init__(experiment)
        self.workers, self.clock = workers, clock
        self.tile_tokens = 0  # told by the backend
        self.passes: list[TracedPass] = []
        self._drain = Drain(workers, self.buffer_events, directory / SPOOL)
        self._buffer: Buffer | None = None
        self._held: list[TracedPass] = []  # those whose events are in the buffer
        self._step: int | None = None  # of the pass under way, if it is traced
        self._pass: TracedPass | None = None

    @property
    def waited_s(self) -> float:
        """Seconds that passes waited for a free buffer."""
        return self._drain.waited_s

    def begin_pass(self, step: int) -> bool:
        """A pass begins; whether it is traced."""
        self._step = step if step % self.step_stride == 0 else None
        return self._step is not None

    def size_for(self, writes: int, reads: int) -> None:
        """Say how many events a layer of this pass has: in all, and for each traced head."""
        if self._step is None:
            return
        events = len(self.layers) * (writes + reads * len(self.kv_heads))
        if self._buffer is not None and not self._buffer.has_room(events):
            self._hand_over(self._buffer)
        if self._buffer is None:
            self._buffer = self._drain.take()
            self._buffer.empty_for(events)
        self._pass = TracedPass(self._step, self._buffer.counters[:, :COUNTS].copy())
        self._held.append(self._pass)

    def segments(self, layer: int) -> Segments | None:
        """Where a layer's kernels write their events; None if they are not traced."""
        if self._pass is None or self._buffer is None or layer % self.layer_stride:
            return None
        return Segments(self._buffer.segments, self._buffer.counters, layer, self.head_stride)

    def ran(self, layer: int, kernel: str, start_ticks: int, end_ticks: int) -> None:
        """A traced kernel has run."""
        assert self._pass is not None
        assert self._buffer is not None
        counters = self._buffer.counters[:, :COUNTS].copy()
        self._pass.kernels.append(TracedKernel(layer, kernel, start_ticks, end_ticks, counters))

    def end_pass(self) -> None:
        """The pass is over."""
        if self._pass is not None:
            self.passes.append(self._pass)
        self._step = self._pass = None

    def _hand_over(self, buffer: Buffer) -> None:
        """Have the buffer written by the background thread, off the critical path."""
        used = buffer.counters[:, USED].copy()
        place = self._drain.give(buffer)
        segments = place + np.cumsum(used) - used
        for traced in self._held:
            traced.places = segments + traced.first[:, USED]
        self._held, self._buffer = [], None

    def finish(self) -> None:
        """Wait until everything that was recorded is in the file."""
        if self._buffer is not None:
            self._hand_over(self._buffer)
        self._drain.finish()

    def flushes(self, traced: TracedPass) -> Iterator[tuple[int, dict[str, Any]]]:
        """Each traced layer of a pass, and what its kernels recorded (`flush.of_kernels`)."""
        segments = self.events(traced)
        before = traced.first
        for layer, kernels in groupby(traced.kernels, key=lambda kernel: kernel.layer):
            parts = []
            for kernel in kernels:
                spans = (before - traced.first)[:, USED], (kernel.counters - traced.first)[:, USED]
                dropped = (kernel.counters - before)[:, DROPPED]
                parts.append(Part(kernel, cut(segments, *spans), dropped))
                before = kernel.counters
            yield layer, of_kernels(parts)

    def events(self, traced: TracedPass) -> list[Events]:
        """The events of a traced pass, an array a worker, in the order they were written."""
        counts = (traced.kernels[-1].counters - traced.first)[:, USED]
        read = self._drain.read
        return [read(int(p), int(n)) for p, n in zip(traced.places, counts, strict=True)]

    def clear(self) -> None:
        """Forget all traced passes."""
        self.finish()
        self._drain.restart()
        self.passes = []

    def close(self) -> None:
        """Free the buffers and end the thread."""
        self._drain.close()

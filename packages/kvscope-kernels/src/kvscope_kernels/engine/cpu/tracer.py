"""Tracing on a CPU: each thread writes events to its own segment."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from kvscope.api.experiments import Experiment
from kvscope_kernels.engine.clock import TickClock
from kvscope_kernels.engine.cpu.buffer import DROPPED, USED, Counts, CpuBuffer, CpuSegments
from kvscope_kernels.engine.flush import Column, Launch
from kvscope_kernels.engine.tracer import SpooledTracer, TracedPass
from kvscope_kernels.kv_events import RECORD

BUFFERS = 2
EVENTS_OF_A_PIECE = EVENTS_OF_A_READ = 2  # K and V


class TracedKernel(NamedTuple):
    """One kernel of a traced pass; instants in ticks, read by the thread that called it."""

    layer: int
    kernel: str
    start_ticks: int
    end_ticks: int
    before: Counts  # Buffer.counts when it began
    after: Counts


class CpuTracer(SpooledTracer):
    """The tracing of one engine on a CPU."""

    def __init__(
        self, experiment: Experiment, clock: TickClock, directory: Path, threads: int
    ) -> None:
        most_events = experiment.tracing.buffer_events
        buffers = [CpuBuffer(threads, most_events) for _ in range(BUFFERS)]
        super().__init__(experiment, clock, directory, buffers, threads)
        self._counts = buffers[0].counts()  # when the last kernel ended

    def open_pass(self, tile_tokens: int, pieces: int, reads: int) -> None:
        """Make room for a pass with `pieces` to write and `reads` blocks to read per KV head."""
        self.tile_tokens = tile_tokens
        if self._step is None:
            return
        of_layer = EVENTS_OF_A_PIECE * pieces + EVENTS_OF_A_READ * reads * len(self.kv_heads)
        events = len(self.layers) * of_layer
        if self._buffer is not None and not self._buffer.has_room(events):
            self._hand_over()
        if self._buffer is None:
            self._buffer = self._spool.take()
            self._buffer.empty_for(events)
        self._pass = TracedPass(self._step)
        self._buffer.passes.append(self._pass)
        self._counts = self._buffer.counts()

    def segments(self, layer: int) -> CpuSegments | None:
        """The segments for a layer's kernels; None if the layer is not traced."""
        if self._pass is None or layer % self.layer_stride:
            return None
        return CpuSegments(self._buffer.segments, self._buffer.counters, layer, self.head_stride)

    def note(self, layer: int, kernel: str, start_ticks: int, end_ticks: int) -> None:
        """Record the times of a traced kernel."""
        assert self._pass is not None
        before, self._counts = self._counts, self._buffer.counts()
        ran = TracedKernel(layer, kernel, start_ticks, end_ticks, before, self._counts)
        self._pass.launches.append(ran)

    def launches(self, traced: TracedPass) -> list[Launch]:
        """Records of the kernels of a pass, a segment a thread."""
        segments = self.events(traced)
        first, launches = traced.launches[0].before, []
        for ran in traced.launches:
            spans = (ran.before - first)[:, USED], (ran.after - first)[:, USED]
            parts = [events[a:b] for events, a, b in zip(segments, *spans, strict=True)]
            counts = {
                "events": np.array([len(part) for part in parts]),
                "dropped": (ran.after - ran.before)[:, DROPPED],
            }
            events = np.concatenate(parts)
            launches.append(
                Launch(ran.kernel, ran.layer, ran.start_ticks, ran.end_ticks, counts, events)
            )
        return launches

    def events(self, traced: TracedPass) -> list[Column]:
        """The events of a traced pass, an array a thread, in the order they were written."""
        first, last = traced.launches[0].before[:, USED], traced.launches[-1].after[:, USED]
        begins = traced.begins + first * RECORD.itemsize
        return [
            self._spool.read(begin, RECORD, count)
            for begin, count in zip(begins.tolist(), (last - first).tolist(), strict=True)
        ]

"""Tracing on a GPU: each CTA of a launch writes events to its own segment."""

from pathlib import Path

import torch

from kvscope.api.experiments import Experiment
from kvscope_kernels.engine.clock import TickClock
from kvscope_kernels.engine.cuda.buffer import HEADER, CudaBuffer, CudaSegments
from kvscope_kernels.engine.flush import Launch
from kvscope_kernels.engine.tracer import SpooledTracer, TracedPass
from kvscope_kernels.kv_events import RECORD

BUFFERS = 2
# Of HEADER, in the order of a flush.
CLOCKS = ("start_clock", "end_clock", "start_timer", "end_timer")
SEGMENT_COLUMNS = ("events", "dropped", "sm", *CLOCKS)


class CudaTracer(SpooledTracer):
    """The tracing of one engine on a GPU."""

    def __init__(
        self,
        experiment: Experiment,
        clock: TickClock,
        directory: Path,
        device: torch.device | str = "cuda",
    ) -> None:
        device, most_events = torch.device(device), experiment.tracing.buffer_events
        counter = torch.zeros(1, dtype=torch.int64, device=device)
        buffers = [CudaBuffer(most_events, device, counter) for _ in range(BUFFERS)]
        super().__init__(experiment, clock, directory, buffers)

    def open_pass(self, tile_tokens: int, processors: int) -> None:
        """Record the pass under way, by tiles of so many queries on so many processors."""
        self.tile_tokens, self.workers = tile_tokens, processors
        if self._step is None:
            return
        self._buffer = self._buffer or self._spool.take()
        self._pass = TracedPass(self._step)
        self._buffer.open(self._pass)

    def segments(self, kernel: str, layer: int, events: int, count: int) -> CudaSegments | None:
        """The segments for a launch of this layer; None if the layer is not traced."""
        if self._pass is None or layer % self.layer_stride:
            return None
        segments: CudaSegments = self._buffer.add(kernel, layer, events, count)
        return segments

    def end_pass(self) -> None:
        """The pass's kernels are launched: their events leave while the next pass runs."""
        if self._buffer is not None:
            self._buffer.close()
            self._hand_over()
        super().end_pass()

    def launches(self, traced: TracedPass) -> list[Launch]:
        """Records of the launches of a pass, in the order of their launch."""
        return [
            self._read(segments, begin)
            for segments, begin in zip(traced.launches, traced.begins, strict=True)
        ]

    def _read(self, launched: CudaSegments, begin: int) -> Launch:
        headers = self._spool.read(begin, HEADER, launched.count)
        events = self._spool.read(begin + headers.nbytes, RECORD, int(headers["events"].sum()))
        segments = {name: headers[name] for name in SEGMENT_COLUMNS}
        start, end = int(headers["start_timer"].min()), int(headers["end_timer"].max())
        return Launch(launched.kernel, launched.layer, start, end, segments, events)

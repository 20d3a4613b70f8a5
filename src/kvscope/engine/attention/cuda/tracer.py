"""Which passes, layers and heads are traced on a GPU, and what their kernels recorded.

The counterpart of `tracer.Tracer`: the same passes, strides and life, but launches in place of
workers. What was recorded goes from the device to a file while the engine runs, and is read back
between repeats.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from kvscope.engine.attention.cuda.buffer import HEADER, Buffers, Launch, Segments
from kvscope.engine.attention.cuda.flush import of_launches
from kvscope.engine.attention.tracing import Clock, Selection
from kvscope.events import RECORD
from kvscope.plan.experiment import Experiment
from kvscope.runfile import SPOOL


class Stored(NamedTuple):
    """A launch, and how many headers and events of it are in the file, one after the other."""

    kernel: str
    layer: int
    place: int  # bytes
    segments: int
    events: int


@dataclass
class TracedPass:
    """The launches of one traced pass."""

    step: int
    launches: list[Stored] = field(default_factory=list)


class GpuTracer(Selection):
    """The tracing of one engine. `passes` holds what was traced since `clear`."""

    def __init__(
        self,
        experiment: Experiment,
        directory: Path,
        clock: Clock,
        device: torch.device | str = "cuda",
    ) -> None:
        super().__init__(experiment)
        self.clock = clock
        self.workers = self.tile_tokens = 0  # told by the backend; workers are the GPU's SMs
        self.passes: list[TracedPass] = []
        self._path = directory / SPOOL
        self._file = self._path.open("w+b")
        self._buffers = Buffers(self.buffer_events, self._store, device)
        self._step: int | None = None

    @property
    def waited_s(self) -> float:
        """Seconds that passes waited for a free buffer."""
        return self._buffers.waited_s

    def begin_pass(self, step: int) -> bool:
        """A pass begins; whether it is traced."""
        self._step = step if step % self.step_stride == 0 else None
        if self._step is not None:
            self._buffers.begin()
        return self._step is not None

    def segments(self, kernel: str, layer: int, events: int, count: int) -> Segments | None:
        """Where a launch of this layer writes its events; None if it is not traced."""
        if self._step is None or layer % self.layer_stride:
            return None
        return self._buffers.segments(kernel, layer, events, count)

    def end_pass(self) -> None:
        """The pass's kernels are launched: their events leave while the next pass runs."""
        if self._step is not None:
            self._buffers.end(self._step)
        self._step = None

    def finish(self) -> None:
        """Wait until everything that was recorded is in the file."""
        self._buffers.flush()

    def recorded(self, traced: TracedPass) -> list[Launch]:
        """What the launches of a pass recorded, in the order they were launched."""
        self.finish()
        return [self._read(stored) for stored in traced.launches]

    def flushes(self, traced: TracedPass) -> Iterator[tuple[int, dict[str, Any]]]:
        """Each traced layer of a pass, and what its kernels recorded (`of_launches`)."""
        launches = self.recorded(traced)
        for layer, group in groupby(launches, key=lambda launch: launch.layer):
            yield layer, of_launches(list(group))

    def clear(self) -> None:
        """Forget all traced passes."""
        self.finish()
        self._file.truncate(0)
        self._file.seek(0)
        self.passes = []

    def close(self) -> None:
        """Free the buffers, end their thread and remove the file."""
        try:
            self._buffers.close()
        finally:
            self._file.close()
            self._path.unlink(missing_ok=True)

    def _store(self, step: int, launches: list[Launch]) -> None:
        """Append a pass to the file; in the buffers' thread."""
        traced = TracedPass(step)
        for kernel, layer, segments, events in launches:
            place = self._file.tell()
            self._file.write(segments.tobytes())
            self._file.write(events.tobytes())
            traced.launches.append(Stored(kernel, layer, place, len(segments), len(events)))
        if launches:
            self.passes.append(traced)

    def _read(self, stored: Stored) -> Launch:
        end = self._file.tell()
        self._file.seek(stored.place)

        def records(kind: np.dtype[Any], count: int) -> Any:
            return np.frombuffer(self._file.read(count * kind.itemsize), kind)

        segments, events = records(HEADER, stored.segments), records(RECORD, stored.events)
        self._file.seek(end)
        return Launch(stored.kernel, stored.layer, segments, events)

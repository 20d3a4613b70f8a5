"""Where the CUDA kernels' events go, and how they come to the host: between passes, unnoticed.

A forward pass records into one buffer on the device. When it ends, a thread copies the buffer to
pinned host memory on a stream of its own and hands the events on, while the next pass records into
another buffer. A pass waits only where all buffers are still on their way.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Thread
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from kvscope.events import RECORD, RECORD_WORDS

# What a kernel writes about each of its segments (triton_kernels: _open and _close).
HEADER = np.dtype(
    [
        ("events", "<i8"),
        ("dropped", "<i8"),
        ("sm", "<i8"),
        ("start_clock", "<i8"),  # ticks of that SM's clock
        ("start_timer", "<i8"),  # nanoseconds of the device's timer
        ("end_clock", "<i8"),
        ("end_timer", "<i8"),
        ("place", "<i8"),  # of its first event in the buffer
    ]
)
HEADER_WORDS = HEADER.itemsize // 8
HEADERS_AT_ONCE = 16384  # a buffer's room for headers grows by at least so many


@dataclass(frozen=True)
class Segments:
    """The segments of one launch: consecutive headers, and a range of the pass's buffer."""

    kernel: str  # 'write' or 'attention'
    layer: int
    events: torch.Tensor  # (event_limit, RECORD_WORDS) int64
    headers: torch.Tensor  # (at least first + count, HEADER_WORDS) int64
    counter: torch.Tensor  # (1,) int64, the logical clock
    first_event: int
    event_limit: int
    first: int
    count: int


class Launch(NamedTuple):
    """What one launch recorded, on the host."""

    kernel: str
    layer: int
    segments: NDArray[np.void]  # HEADER
    events: NDArray[np.void]  # RECORD, segment after segment


@dataclass
class _Rows:
    """Rows of 64-bit words on the device, and their copy on the host."""

    device: torch.Tensor
    host: torch.Tensor
    used: int = 0

    @classmethod
    def make(cls, rows: int, words: int, device: torch.device) -> "_Rows":
        with torch.inference_mode(False):  # vLLM's is on in its threads only, not in ours
            host = torch.empty((rows, words), dtype=torch.int64, pin_memory=device.type == "cuda")
            return cls(torch.empty((rows, words), dtype=torch.int64, device=device), host)

    @property
    def room(self) -> int:
        return len(self.device) - self.used

    def copy(self) -> None:
        self.host[: self.used].copy_(self.device[: self.used], non_blocking=True)


@dataclass
class _Buffer:
    """One pass's events and headers."""

    events: _Rows
    headers: list[_Rows] = field(default_factory=list)  # kept, and filled one after the other
    segments: list[Segments] = field(default_factory=list)
    passing: Any = None  # what `end` is told of the pass


class Buffers:
    """The buffers of one device. `sink` gets each pass's launches, in the draining thread.

    An error in `sink` or in a copy is raised by the next call.
    """

    def __init__(
        self,
        capacity: int,
        sink: Callable[[Any, list[Launch]], None],
        device: torch.device | str = "cuda",
        count: int = 2,
    ) -> None:
        self.capacity, self.sink = capacity, sink
        self.device = torch.device(device)
        self.waited_s = 0.0  # that passes waited for a buffer
        self._on_gpu = self.device.type == "cuda"
        self._counter = torch.zeros(1, dtype=torch.int64, device=self.device)
        self._free: SimpleQueue[_Buffer] = SimpleQueue()
        self._full: SimpleQueue[tuple[_Buffer, Any] | None] = SimpleQueue()
        self._current: _Buffer | None = None
        self._error: Exception | None = None
        for _ in range(count):
            self._free.put(_Buffer(_Rows.make(capacity, RECORD_WORDS, self.device)))
        self._count = count
        self._thread = Thread(target=self._drain, name="kv-events", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Record from now on into a buffer that is free, waiting for one if need be."""
        self._check()
        if self._current is not None:
            raise RuntimeError("the pass before has not ended")
        start = perf_counter()
        self._current = self._free.get()
        self.waited_s += perf_counter() - start

    def segments(self, kernel: str, layer: int, events: int, count: int) -> Segments:
        """Segments for a launch that makes so many events. Those beyond the buffer are dropped."""
        buffer = self._current
        if buffer is None:
            raise RuntimeError("no pass has begun")
        headers = self._headers(buffer, count)
        made = Segments(
            kernel,
            layer,
            buffer.events.device,
            headers.device,
            self._counter,
            first_event=buffer.events.used,
            event_limit=self.capacity,
            first=headers.used,
            count=count,
        )
        buffer.events.used += events
        headers.used += count
        buffer.segments.append(made)
        return made

    def end(self, passing: Any) -> None:
        """The pass's kernels are launched: hand on its events as soon as they are there.

        `passing` goes to `sink` with them.
        """
        self._check()
        buffer, self._current = self._current, None
        if buffer is None:
            raise RuntimeError("no pass has begun")
        buffer.passing = passing
        launched = torch.cuda.current_stream(self.device).record_event() if self._on_gpu else None
        self._full.put((buffer, launched))

    def flush(self) -> None:
        """Return once all ended passes have been handed on."""
        buffers = [self._free.get() for _ in range(self._count - (self._current is not None))]
        for buffer in buffers:
            self._free.put(buffer)
        self._check()

    def close(self) -> None:
        """Hand on what is left, and free the buffers."""
        self._full.put(None)
        self._thread.join()
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise RuntimeError("KV events could not be handed on") from self._error

    def _headers(self, buffer: _Buffer, count: int) -> _Rows:
        """Room for a launch's headers, which lie in one piece."""
        for rows in buffer.headers:
            if rows.room >= count:
                return rows
        rows = _Rows.make(max(count, HEADERS_AT_ONCE), HEADER_WORDS, self.device)
        buffer.headers.append(rows)
        return rows

    def _drain(self) -> None:
        """Copy and hand on one full buffer after the other, until told to stop."""
        stream = torch.cuda.Stream(self.device) if self._on_gpu else None
        while (full := self._full.get()) is not None:
            buffer, launched = full
            try:
                if self._error is None:
                    self._copy(buffer, launched, stream)
                    self.sink(buffer.passing, _launches(buffer))
            except Exception as error:  # raised by the next call
                self._error = error
            buffer.segments.clear()
            for rows in (buffer.events, *buffer.headers):
                rows.used = 0
            self._free.put(buffer)

    def _copy(self, buffer: _Buffer, launched: Any, stream: Any) -> None:
        buffer.events.used = min(buffer.events.used, self.capacity)
        with torch.cuda.stream(stream):  # None: no stream, as on a CPU
            if stream is not None:
                stream.wait_event(launched)
            for rows in (buffer.events, *buffer.headers):
                rows.copy()
            if stream is not None:
                stream.synchronize()


def _launches(buffer: _Buffer) -> list[Launch]:
    """What the pass's launches recorded, copied out of the buffer."""
    everything = buffer.events.host.numpy().view(RECORD)[:, 0]
    host = {id(rows.device): rows.host.numpy().view(HEADER)[:, 0] for rows in buffer.headers}
    launches = []
    for made in buffer.segments:
        headers = host[id(made.headers)][made.first : made.first + made.count].copy()
        events = everything[_ranges(headers["place"], headers["events"])]
        launches.append(Launch(made.kernel, made.layer, headers, events))
    return launches


def _ranges(begins: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The indices begin, begin + 1, …, of so many, of one range after the other."""
    before = np.cumsum(counts) - counts
    return np.asarray(np.arange(counts.sum()) + np.repeat(begins - before, counts))

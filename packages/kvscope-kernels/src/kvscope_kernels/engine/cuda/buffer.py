"""The CUDA kernels' buffer of events: a segment for each CTA, one buffer a forward pass.

A pass is recorded in device memory. When its kernels are launched, the spool's thread copies the
buffer to pinned host memory, on a stream of its own, while the next pass is recorded in another.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kvscope_kernels.engine.spool import Spool
from kvscope_kernels.engine.tracer import TracedPass
from kvscope_kernels.kv_events import RECORD, RECORD_WORDS

# What a kernel writes about each of its segments (instrument.open_segment and close_segment).
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
class CudaSegments:
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


class Rows:
    """Rows of 64-bit words on the device, of which some are used, and their copy on the host."""

    def __init__(self, rows: int, words: int, device: torch.device) -> None:
        self.used = 0
        with torch.inference_mode(False):  # vLLM's is on in its threads, but not in the spool's
            self.device = torch.empty((rows, words), dtype=torch.int64, device=device)
            pin = device.type == "cuda"
            self.host = torch.empty((rows, words), dtype=torch.int64, pin_memory=pin)

    def copy(self) -> None:
        """Start copying the used part to the host."""
        used = min(self.used, len(self.device))
        self.host[:used].copy_(self.device[:used], non_blocking=True)

    def records(self, kind: np.dtype[Any]) -> npt.NDArray[Any]:
        """The host's copy as records."""
        words: npt.NDArray[Any] = self.host.numpy().view(kind)[:, 0]
        return words


class CudaBuffer:
    """The events and headers of one pass."""

    def __init__(self, capacity: int, device: torch.device, counter: torch.Tensor) -> None:
        self._device, self._counter = device, counter
        self._events = Rows(capacity, RECORD_WORDS, device)
        self._headers: list[Rows] = []  # kept, and filled one after the other
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._launched: Any = None  # the event after the pass's last kernel
        self._pass = TracedPass(0)

    def open(self, traced: TracedPass) -> None:
        """Empty it for a pass, whose launches are its segments."""
        self._pass = traced
        for rows in (self._events, *self._headers):
            rows.used = 0

    def add(self, kernel: str, layer: int, events: int, count: int) -> CudaSegments:
        """Segments for a launch that makes so many events. Those beyond the buffer are dropped."""
        headers = self._room(count)
        segments = CudaSegments(
            kernel,
            layer,
            self._events.device,
            headers.device,
            self._counter,
            first_event=self._events.used,
            event_limit=len(self._events.device),
            first=headers.used,
            count=count,
        )
        self._events.used += events
        headers.used += count
        self._pass.launches.append(segments)
        return segments

    def close(self) -> None:
        """The pass's kernels are launched, on the current stream."""
        if self._stream is not None:
            self._launched = torch.cuda.current_stream(self._device).record_event()

    def store(self, spool: Spool) -> None:
        """Append the headers and events of each launch to the spool."""
        with torch.cuda.stream(self._stream):  # None: no stream, as on a CPU
            if self._stream is not None:
                self._stream.wait_event(self._launched)
            for rows in (self._events, *self._headers):
                rows.copy()
            if self._stream is not None:
                self._stream.synchronize()
        events = self._events.records(RECORD)
        host = {id(rows.device): rows.records(HEADER) for rows in self._headers}
        begins = []
        for segments in self._pass.launches:
            headers = host[id(segments.headers)][segments.first : segments.first + segments.count]
            recorded = events[_ranges(headers["place"], headers["events"])]
            begins.append(spool.append((headers, recorded)))
        self._pass.begins = begins

    def _room(self, count: int) -> Rows:
        """Room for a launch's headers, which lie in one piece."""
        for rows in self._headers:
            if len(rows.device) - rows.used >= count:
                return rows
        rows = Rows(max(count, HEADERS_AT_ONCE), HEADER_WORDS, self._device)
        self._headers.append(rows)
        return rows


def _ranges(begins: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The indices begin, begin + 1, …, of so many, of one range after the other."""
    before = np.cumsum(counts) - counts
    return np.asarray(np.arange(counts.sum()) + np.repeat(begins - before, counts))

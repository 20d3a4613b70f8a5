"""Where events go while forward passes run, and how they leave between passes.

Two buffers take turns: kernels fill one while a background thread writes the other to a file. A
buffer takes passes until the next one might not fit: waking a thread costs as much as some
thousand events. Each is bounded; a kernel that finds its segment full counts what it drops.
"""

import os
import queue
import threading
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.events import RECORD, RECORD_WORDS

Words = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.int64]

BUFFERS = 2
SEGMENT_EVENTS = 1 << 14  # of a segment at least, where it may: half a MiB, which caches hold
MOST_PARTS = 1024  # that Linux writes in one call
COUNTER_WORDS = 8  # one cache line a segment, so that workers do not share one
USED, DROPPED = 0, 1


class Buffer:
    """The segments of some forward passes, one a worker, and their counters."""

    def __init__(self, workers: int, most_events: int) -> None:
        self.counters: Counts = np.zeros((workers, COUNTER_WORDS), np.int64)
        self.segments: Words = np.empty((workers, 0, RECORD_WORDS), np.uint64)
        self._most = most_events // workers  # of a segment
        # Memory that no event is written to is never taken from the system.
        self._words: Words = np.empty(workers * self._most * RECORD_WORDS, np.uint64)

    def has_room(self, events: int) -> bool:
        """Whether one worker could write so many more."""
        return bool(self.counters[:, USED].max() + events <= self.segments.shape[1])

    def empty_for(self, events: int) -> None:
        """Empty the segments and make each large enough for `events`, or as large as allowed."""
        workers, capacity = len(self.counters), min(max(events, SEGMENT_EVENTS), self._most)
        self.segments = self._words[: workers * capacity * RECORD_WORDS].reshape(
            workers, capacity, RECORD_WORDS
        )
        self.counters[:] = 0

    def used(self) -> list[Words]:
        """The events of each segment."""
        counts = self.counters[:, USED].tolist()
        return [self.segments[worker, :count] for worker, count in enumerate(counts)]


class Drain:
    """Writes buffers to a file in a thread of its own; `waited_s` is what kernels waited for it."""

    def __init__(self, workers: int, most_events: int, path: Path) -> None:
        self.waited_s = 0.0
        self.path = path
        self._file = path.open("w+b", buffering=0)
        self._written = 0
        self._free: queue.SimpleQueue[Buffer] = queue.SimpleQueue()
        self._full: queue.SimpleQueue[Buffer | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        for _ in range(BUFFERS):
            self._free.put(Buffer(workers, most_events))
        self._thread = threading.Thread(target=self._run, name="kv events", daemon=True)
        self._thread.start()

    def take(self) -> Buffer:
        """An empty buffer; waits for one if the thread is behind."""
        began = perf_counter()
        buffer = self._free.get()
        self.waited_s += perf_counter() - began
        self._complain()
        return buffer

    def _complain(self) -> None:
        if self._error is not None:
            raise RuntimeError(f"KV events could not be written to {self.path}") from self._error

    def give(self, buffer: Buffer) -> int:
        """Hand over a filled buffer; the place of its first event in the file, in events."""
        place = self._written
        self._written += int(buffer.counters[:, USED].sum())
        self._full.put(buffer)
        return place

    def finish(self) -> None:
        """Wait until everything handed over is in the file."""
        taken = [self._free.get() for _ in range(BUFFERS)]
        for buffer in taken:
            self._free.put(buffer)
        self._complain()

    def read(self, place: int, events: int) -> npt.NDArray[Any]:
        """Events of the file, as records."""
        self._file.seek(place * RECORD.itemsize)
        data = bytearray(events * RECORD.itemsize)
        view, got = memoryview(data), 0
        while got < len(data):
            count = self._file.readinto(view[got:])
            if not count:
                raise RuntimeError(f"{self.path}: ends at {got} of {len(data)} bytes")
            got += count
        return np.frombuffer(data, RECORD)

    def restart(self) -> None:
        """Forget what is in the file."""
        self._file.truncate(0)
        self._file.seek(0)
        self._written = 0

    def close(self) -> None:
        """End the thread and remove the file."""
        self._full.put(None)
        self._thread.join()
        self._file.close()
        self.path.unlink(missing_ok=True)

    def _run(self) -> None:
        while (buffer := self._full.get()) is not None:
            try:
                self._write([part.data.cast("B") for part in buffer.used() if len(part)])
            except Exception as error:  # told to whoever takes the next buffer
                self._error = error
            self._free.put(buffer)

    def _write(self, parts: list[memoryview]) -> None:
        """Write all parts, in as few calls as the system allows."""
        while parts:
            written = os.writev(self._file.fileno(), parts[:MOST_PARTS])
            while parts and written >= len(parts[0]):
                written -= len(parts.pop(0))
            if written:
                parts[0] = parts[0][written:]

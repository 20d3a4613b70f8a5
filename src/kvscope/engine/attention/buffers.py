"""Where events go while a forward pass runs, and how they leave between passes.

Two buffers take turns: kernels fill one while a background thread writes the other, filled by the
pass before, to a file. Each is bounded; a kernel that finds its segment full counts what it drops.
"""

import queue
import threading
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.engine.attention.events import EVENT, WORDS

Words = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.int64]

BUFFERS = 2
COUNTER_WORDS = 8  # one cache line a segment, so that workers do not share one
USED, DROPPED = 0, 1


class Buffer:
    """The segments of one forward pass, one a worker, and their counters."""

    def __init__(self, workers: int, most_events: int) -> None:
        self.counters: Counts = np.zeros((workers, COUNTER_WORDS), np.int64)
        self.segments: Words = np.empty((workers, 0, WORDS), np.uint64)
        self._most = most_events // workers  # of a segment
        # Memory that no event is written to is never taken from the system.
        self._words: Words = np.empty(workers * self._most * WORDS, np.uint64)

    def size_for(self, events: int) -> None:
        """Empty the segments and make each large enough for `events`, or as large as allowed."""
        workers, capacity = len(self.counters), min(events, self._most)
        self.segments = self._words[: workers * capacity * WORDS].reshape(workers, capacity, WORDS)
        self.counters[:] = 0

    def used(self, worker: int) -> Words:
        """The events of a segment."""
        return self.segments[worker, : self.counters[worker, USED]]


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
        if self._error is not None:
            raise RuntimeError("KV events could not be written") from self._error
        return buffer

    def give(self, buffer: Buffer) -> int:
        """Hand over a filled buffer; the place of its first event in the file, in events."""
        place = self._written
        self._written += int(buffer.counters[:, USED].sum())
        self._full.put(buffer)
        return place

    def finish(self) -> None:
        """Wait until everything handed over is in the file."""
        taken = [self.take() for _ in range(BUFFERS)]
        for buffer in taken:
            self._free.put(buffer)

    def read(self, place: int, events: int) -> npt.NDArray[Any]:
        """Events of the file, as records."""
        self._file.seek(place * EVENT.itemsize)
        data = bytearray(events * EVENT.itemsize)
        view, got = memoryview(data), 0
        while got < len(data):
            count = self._file.readinto(view[got:])
            if not count:
                raise RuntimeError(f"{self.path}: ends at {got} of {len(data)} bytes")
            got += count
        return np.frombuffer(data, EVENT)

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
                for worker in range(len(buffer.counters)):
                    self._write(buffer.used(worker).data.cast("B"))
            except OSError as error:  # told to whoever takes the next buffer
                self._error = error
            self._free.put(buffer)

    def _write(self, data: memoryview) -> None:
        while data:
            data = data[self._file.write(data) :]

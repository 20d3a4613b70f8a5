"""The temporary file of KV events while an engine runs, and its buffers.

Kernels fill one buffer while a background thread stores the others. A forward pass waits only if no
buffer is free.
"""

import os
import queue
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kvscope.api.errors import CannotWrite

MOST_PARTS = 1024  # that Linux writes in one call


class Buffer(Protocol):
    """A buffer with the events of one or more forward passes."""

    def store(self, spool: "Spool") -> None:
        """Append the events to the spool and record their offsets; called in its thread."""


class Spool:
    """A temporary file, its buffers, and the thread that stores them.

    `waited_s` is the time that `take` waited for a free buffer. The next `take` or `finish` raises
    an error of the thread: CannotWrite if the file cannot be written, else RuntimeError.
    """

    def __init__(self, path: Path, buffers: Sequence[Buffer]) -> None:
        self.path, self.waited_s = path, 0.0
        self._file = path.open("w+b", buffering=0)
        self._bytes = 0
        self._free: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._full: queue.SimpleQueue[Buffer | None] = queue.SimpleQueue()
        self._count = len(buffers)
        self._error: Exception | None = None
        for buffer in buffers:
            self._free.put(buffer)
        self._thread = threading.Thread(target=self._run, name="kv events", daemon=True)
        self._thread.start()

    def take(self) -> Any:
        """A free buffer; waits until there is one."""
        began = perf_counter()
        buffer = self._free.get()
        self.waited_s += perf_counter() - began
        self._check()
        return buffer

    def give(self, buffer: Buffer) -> None:
        """Give a filled buffer to the thread to be stored."""
        self._full.put(buffer)

    def finish(self) -> None:
        """Wait until every buffer is stored; no buffer may be taken meanwhile."""
        for buffer in [self._free.get() for _ in range(self._count)]:
            self._free.put(buffer)
        self._check()

    def append(self, arrays: Iterable[npt.NDArray[Any]]) -> int:
        """Append arrays to the file; returns the offset of the first in bytes."""
        begin = self._bytes
        parts = [a.reshape(-1).view(np.uint8).data for a in arrays if a.size]
        while parts:
            written = os.pwritev(self._file.fileno(), parts[:MOST_PARTS], self._bytes)
            self._bytes += written
            while parts and written >= len(parts[0]):
                written -= len(parts.pop(0))
            if written:
                parts[0] = parts[0][written:]
        return begin

    def read(self, begin: int, kind: np.dtype[Any], count: int) -> npt.NDArray[Any]:
        """Read `count` records of type `kind` from the offset `begin` in bytes."""
        data, done = bytearray(count * kind.itemsize), 0
        while done < len(data):
            got = os.preadv(self._file.fileno(), [memoryview(data)[done:]], begin + done)
            if not got:
                raise RuntimeError(f"{self.path}: ends at byte {begin + done}, in a record")
            done += got
        return np.frombuffer(data, kind)

    def restart(self) -> None:
        """Truncate the file."""
        self._file.truncate(0)
        self._bytes = 0

    def close(self) -> None:
        """Store the remaining buffers, end the thread, and remove the file."""
        self._full.put(None)
        self._thread.join()
        self._file.close()
        self.path.unlink(missing_ok=True)

    def _run(self) -> None:
        while (buffer := self._full.get()) is not None:
            try:
                if self._error is None:
                    buffer.store(self)
            except Exception as error:  # raised by the next call of `_check`
                self._error = error
            self._free.put(buffer)

    def _check(self) -> None:
        if isinstance(self._error, OSError):
            raise CannotWrite(self.path, self._error)
        if self._error is not None:
            raise RuntimeError("KV events could not be stored") from self._error

"""The order of a GPU's operations: a vector clock for each stream, and for the host.

A rehearsed operation is carried out when it is launched, so a program that forgets to wait computes
the right numbers here. Its order is checked instead. RuntimeError where

- an operation uses a region whose last write, on another stream, is not ordered before it by an
  event, a stream or a synchronization;
- the host reads page-locked memory before it has waited for the last write;
- memory of the GPU is freed while a stream other than the one it was allocated on may still use
  it, and `record_stream` was not called: PyTorch would give it to the next tensor.
"""

import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Protocol

Seen = dict[int, int]  # by stream, the number of its operations that have ended for sure


@dataclass(frozen=True)
class Point:
    """An operation: its stream, and its number there."""

    stream: int
    number: int


@dataclass
class Uses:
    """The streams that use a region: the one it was allocated on, and others.

    Attributes
    ----------
    last
        by other stream, the number of its last operation on the region
    recorded
        streams that `record_stream` was called for
    """

    stream: int
    last: Seen = field(default_factory=dict)
    recorded: set[int] = field(default_factory=set)


class Used(Protocol):
    """Memory that streams share (`memory.Region`).

    `written` is the last operation that wrote to it, None if the host did.
    """

    written: Any
    uses: Uses


class Order:
    """The streams of a process and the host, and what each is ordered after."""

    def __init__(self) -> None:
        self._launched: Seen = defaultdict(int)
        self._after: dict[int, Seen] = defaultdict(dict)
        self._host: Seen = {}
        self._lock = threading.RLock()
        self._freed_early: str | None = None  # what a region's end cannot raise

    def launch(self, stream: int) -> Point:
        """The next operation of a stream."""
        with self._lock:
            self._launched[stream] += 1
            return Point(stream, self._launched[stream])

    def touch(self, region: Used, stream: int, what: str) -> None:
        """An operation of a stream reads or writes a region."""
        if self._freed_early is not None:
            said, self._freed_early = self._freed_early, None
            raise RuntimeError(said)
        if stream != region.uses.stream:
            region.uses.last[stream] = self.launch(stream).number
        last: Point | None = region.written
        if last is None or last.stream == stream:
            return
        seen = self._after[stream].get(last.stream, 0), self._host.get(last.stream, 0)
        if max(seen) < last.number:
            raise RuntimeError(
                f"{what} on stream {stream} uses what stream {last.stream} may not have written "
                "yet: wait for it by an event"
            )

    def free(self, uses: Uses) -> None:
        """A region is freed; the next operation raises RuntimeError if that is too early."""
        after = self._after[uses.stream]
        for stream, number in uses.last.items():
            seen = max(after.get(stream, 0), self._host.get(stream, 0))
            if seen < number and stream not in uses.recorded:
                self._freed_early = (
                    f"memory of stream {uses.stream} was freed while stream {stream} may still use "
                    "it: wait for that, or call record_stream"
                )

    def read_on_host(self, region: Used, what: str) -> None:
        """The host reads a region."""
        last: Point | None = region.written
        if last is not None and self._host.get(last.stream, 0) < last.number:
            raise RuntimeError(
                f"{what} reads page-locked memory that stream {last.stream} may not have written "
                "yet: synchronize with it"
            )

    def snapshot(self, stream: int) -> Seen:
        """The operations that have ended when all of a stream have."""
        with self._lock:
            return self._after[stream] | {stream: self._launched[stream]}

    def follow(self, stream: int, seen: Seen) -> None:
        """Order all later operations of a stream after these."""
        with self._lock:
            _merge(self._after[stream], seen)

    def host_follows(self, seen: Seen) -> None:
        """Note that the host has waited for these; what it launches later is ordered after them."""
        with self._lock:
            _merge(self._host, seen)

    def host_knows(self, seen: Seen) -> bool:
        """True if the host has waited for these."""
        return all(self._host.get(stream, 0) >= number for stream, number in seen.items())

    def host_waits(self, stream: int) -> None:
        """The host waits for a stream."""
        self.host_follows(self.snapshot(stream))

    def host_waits_for_all(self) -> None:
        """The host waits for the device."""
        for stream in list(self._launched):
            self.host_waits(stream)


def _merge(known: Seen, more: Seen) -> None:
    for stream, number in more.items():
        known[stream] = max(known.get(stream, 0), number)


ORDER = Order()
_current = threading.local()
DEFAULT = 0
_made = DEFAULT


def current_stream() -> int:
    """The number of this thread's current stream."""
    return int(getattr(_current, "stream", DEFAULT))


def set_current_stream(stream: int) -> None:
    """Make a stream this thread's current one."""
    _current.stream = stream


def new_stream() -> int:
    """The number of a new stream."""
    global _made
    _made += 1
    return _made


class Mark:
    """The place of an event in its stream, and the host's time of its recording in seconds."""

    def __init__(self, stream: int) -> None:
        self.seen, self.at_s = ORDER.snapshot(stream), time.perf_counter()

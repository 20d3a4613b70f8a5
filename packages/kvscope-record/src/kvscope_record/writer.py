"""The thread that writes what a server's engine gives it, so that the engine never waits."""

import hashlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue

from kvscope.api.errors import reason_of
from kvscope.api.servers import servers
from kvscope_record.lock import claim
from kvscope_record.options import RecordOptions
from kvscope_record.records import Arrival, Ended, Event, Live, Segment
from kvscope_record.segments import SegmentWriter, next_number, remove_oldest

LOG = logging.getLogger(servers.LOGGER)

MOST_WAITING = 4096
"""Records in memory; beyond it the engine drops records until the thread has caught up."""

_PERIOD_S = 0.25  # what a kill of the process loses, and how rarely the engine is disturbed
_SEGMENTS = 16  # into which the kept bytes, and minutes, are divided
_LONGEST_S = 300.0
_SHORTEST_S = 5.0  # a segment begins with all requests that are there, which may be much
_SWEEP_S = 10.0
_HASHES_AT_ONCE = 256


class Writer:
    """Writes events to the segments of a directory until it is closed, or cannot write.

    BadInput if another living server writes there, OSError if it is not writable.
    `put` is called by the engine's thread. `wants_segment` asks it for the beginning of a new one.
    """

    def __init__(self, options: RecordOptions) -> None:
        self.options = options
        self._lock: int | None = claim(options.directory)
        self.open = True
        self.wants_segment = True
        self._salt = secrets.token_bytes(16)  # never written: hashes are equal within a recording
        self._waiting: SimpleQueue[Event] = SimpleQueue()
        self._number = next_number(options.directory)
        self._segment: SegmentWriter | None = None
        self._closing = threading.Event()
        self._part_bytes = options.keep_bytes // _SEGMENTS
        self._swept = 0.0
        self._swept_bytes = 0  # of the segment, then
        self._thread = threading.Thread(target=self._run, name="kvscope-record", daemon=True)
        minutes_s = _LONGEST_S if options.minutes is None else options.minutes * 60 / _SEGMENTS
        self._longest_s = min(_LONGEST_S, minutes_s)
        self._thread.start()

    @property
    def full(self) -> bool:
        """True if no further event can be taken."""
        return self._waiting.qsize() >= MOST_WAITING

    @property
    def caught_up(self) -> bool:
        """True if most of the events are written."""
        return self._waiting.qsize() < MOST_WAITING // 4

    def put(self, event: Event) -> None:
        """Take an event. Its hashes are raw and are salted before they are written."""
        self._waiting.put(event)

    def stop(self, why: str) -> None:
        """Stop recording for good, and say why."""
        if self.open:
            self.open = False
            LOG.error("kvscope records no longer into %s: %s", self.options.directory, why)

    def close(self) -> None:
        """Write the remaining events and end the thread."""
        self._closing.set()
        self._thread.join(timeout=5)
        self.open = False
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _run(self) -> None:
        try:
            while self.open and not self._closing.wait(_PERIOD_S):
                self._write()
            if self.open:
                self._write()
                if self._segment is not None:
                    self._segment.close()
        except OSError as error:
            self.stop(reason_of(error))
        except Exception as error:
            self.stop(f"{type(error).__name__}: {error}")
        if not self.open and self._segment is not None:
            self._segment.abandon()

    def _write(self) -> None:
        for _ in range(self._waiting.qsize()):
            try:
                event = self._waiting.get_nowait()
            except Empty:
                break
            if isinstance(event, Segment):
                self._begin(event)
            assert self._segment is not None, "a recording begins with a segment"
            self._segment.write(self._salted(event))
        if self._segment is None:
            return
        self._segment.flush()
        grown = self._segment.bytes - self._swept_bytes
        if time.monotonic() - self._swept > _SWEEP_S or grown > self._part_bytes // 2:
            self._sweep()
        age_s = time.monotonic() - self._segment.began
        large = self._segment.bytes > self._part_bytes
        if self._segment.removed or age_s > self._longest_s or (large and age_s > _SHORTEST_S):
            self.wants_segment = True

    def _sweep(self) -> None:
        """Remove segments beyond the size or age to keep; the newest segment grows meanwhile."""
        keep_bytes = self.options.keep_bytes - self._part_bytes
        remove_oldest(self.options.directory, keep_bytes, self.options.minutes)
        self._swept = time.monotonic()
        self._swept_bytes = 0 if self._segment is None else self._segment.bytes

    def _begin(self, event: Segment) -> None:
        if self._segment is not None:
            self._segment.close()
        self._segment = SegmentWriter(self.options.directory, self._number)
        self._number += 1
        self._sweep()

    def _salted(self, event: Event) -> Event:
        if isinstance(event, Arrival):
            event = event._replace(plain=self._salt_all(event.plain))
        if isinstance(event, Arrival | Live | Ended):
            return event._replace(hashes=self._salt_all(event.hashes))
        return event

    def _salt_all(self, hashes: Sequence[object]) -> list[str]:
        """Salted hashes of vLLM's hashes of blocks, 16 hex digits each."""
        hash_rows = []
        for place, hash_ in enumerate(hashes):
            if place and place % _HASHES_AT_ONCE == 0:
                time.sleep(0)  # lets the engine's thread go on
            raw = hash_ if isinstance(hash_, bytes) else str(hash_).encode()
            hash_rows.append(hashlib.blake2b(raw, key=self._salt, digest_size=8).hexdigest())
        return hash_rows

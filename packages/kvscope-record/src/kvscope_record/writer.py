"""The thread that writes what a server's engine gives it, so that the engine never waits."""

import errno
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
from kvscope_record.records import Arrival, Closed, Ended, Event, Live, Segment
from kvscope_record.segments import SegmentWriter, next_numbers, remove_oldest

LOG = logging.getLogger(servers.LOGGER)

MOST_WAITING = 4096
"""Records in memory; beyond it the engine drops records until the thread has caught up."""

_PERIOD_S = 0.5  # what a kill of the process loses, and how rarely the engine is disturbed
_SEGMENTS = 16  # into which the kept bytes, and minutes, are divided
_LONGEST_S = 60.0  # a stretch is read from where a segment begins
_SHORTEST_S = 5.0  # a segment begins with all requests that are there, which may be much
_SWEEP_S = 10.0
_RETRY_S = 2.0
_ROOM_BYTES = 1 << 16
_FULL = (errno.ENOSPC, errno.EDQUOT)
_HASHES_AT_ONCE = 256


class Writer:
    """Writes events to the segments of a directory until it is closed, or cannot write.

    While the disk is full, no event is taken; every few seconds it is tried whether there is room.
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
        self._number, self.session = next_numbers(options.directory)
        self._segment: SegmentWriter | None = None
        self._frame = 0  # number of a segment's first frame
        self._closing = threading.Event()
        self._full_since: float | None = None  # of the disk
        self._tried = 0.0
        self._lost = 0  # records that were taken and could not be written
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
        return self._full_since is not None or self._waiting.qsize() >= MOST_WAITING

    @property
    def caught_up(self) -> bool:
        """True if most of the events are written, and a segment can be begun."""
        return not self.full and self._waiting.qsize() < MOST_WAITING // 4

    def put(self, event: Event) -> None:
        """Take an event. Its hashes are raw and are salted before they are written."""
        self._waiting.put(event)

    def stop(self, why: str) -> None:
        """Stop recording for good, and say why."""
        if self.open:
            self.open = False
            LOG.error("kvscope records no longer into %s: %s", self.options.directory, why)

    def close(self) -> None:
        """Write the remaining events and end the thread; safe to call repeatedly."""
        self._closing.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=5)
        self.open = False
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _run(self) -> None:
        try:
            while self.open and not self._closing.wait(_PERIOD_S):
                self._try_to_write()
            if self.open:
                self._try_to_write(last=True)
        except OSError as error:
            self.stop(reason_of(error))
        except Exception as error:
            self.stop(f"{type(error).__name__}: {error}")
        if self._segment is not None:
            self._segment.abandon()

    def _try_to_write(self, last: bool = False) -> None:
        """Write what waits; if the disk is full, drop it, and have a segment begun later."""
        if self._full_since is not None:
            self._drop_waiting()
            if time.monotonic() - self._tried > _RETRY_S and self._has_room():
                LOG.warning(
                    "kvscope records again into %s, after %.0f s without room",
                    *(self.options.directory, time.monotonic() - self._full_since),
                )
                self._full_since, self.wants_segment = None, True
            return
        try:
            self._write()
            if last and self._segment is not None:
                self._segment.write(Closed(time.monotonic_ns(), time.time_ns()))
                self._segment.close()
                self._segment = None
        except OSError as error:
            if error.errno not in _FULL:
                raise
            self._full_since = self._tried = time.monotonic()
            LOG.error(
                "kvscope records nothing into %s until there is room: %s",
                *(self.options.directory, reason_of(error)),
            )
            self._lost += 1
            if self._segment is not None:
                self._segment.abandon()
                self._frame, self._segment = self._segment.next_frame, None
            self._drop_waiting()

    def _drop_waiting(self) -> None:
        while self._next() is not None:
            self._lost += 1

    def _next(self) -> Event | None:
        try:
            return self._waiting.get_nowait()
        except Empty:
            return None

    def _has_room(self) -> bool:
        """True if as much can be written as a segment needs to begin."""
        self._tried = time.monotonic()
        probe = self.options.directory / f".room-{os.getpid()}"
        try:
            probe.write_bytes(bytes(_ROOM_BYTES))
        except OSError as error:
            if error.errno not in _FULL:
                raise
            return False
        finally:
            probe.unlink(missing_ok=True)
        return True

    def _write(self) -> None:
        for _ in range(self._waiting.qsize()):
            if (event := self._next()) is None:
                break
            if isinstance(event, Segment):
                event = event._replace(dropped=event.dropped + self._lost)
                self._begin(event)
            if self._segment is None:  # the disk was full; a segment is to come
                self._lost += 1
            else:
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
            self._frame = self._segment.next_frame
        place = self.options.directory, self._number, self.session, self._frame
        self._segment = SegmentWriter(*place)
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

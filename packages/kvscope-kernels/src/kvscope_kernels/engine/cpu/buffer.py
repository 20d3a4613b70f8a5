"""Buffers of events on a CPU: one bounded segment per thread, shared by several passes.

A buffer takes passes until the next one might not fit, because waking a thread to store it costs as
much as some thousand events. A kernel counts events that do not fit into its segment as dropped.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvscope_kernels.engine.spool import Spool
from kvscope_kernels.engine.tracer import TracedPass
from kvscope_kernels.kv_events import RECORD, RECORD_WORDS

Words = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.int64]

SEGMENT_EVENTS = 1 << 14  # of a segment at least, where it may: half a MiB, which caches hold
COUNTER_WORDS = 8  # one cache line a segment, so that threads do not share one
USED, DROPPED, COUNTERS = 0, 1, 2


class CpuSegments(NamedTuple):
    """The segments that one kernel writes its events to."""

    events: Words  # (threads, capacity, RECORD_WORDS)
    counters: Counts  # (threads, COUNTER_WORDS)
    layer: int
    head_stride: int


class CpuBuffer:
    """The segments of some forward passes, one a thread, and their counters."""

    def __init__(self, threads: int, most_events: int) -> None:
        self.counters: Counts = np.zeros((threads, COUNTER_WORDS), np.int64)
        self.segments: Words = np.empty((threads, 0, RECORD_WORDS), np.uint64)
        self.passes: list[TracedPass] = []
        self._most = most_events // threads  # of a segment
        # Memory that no event is written to is never taken from the system.
        self._words: Words = np.empty(threads * self._most * RECORD_WORDS, np.uint64)

    def has_room(self, events: int) -> bool:
        """True if one thread could write this many more events."""
        return bool(self.counters[:, USED].max() + events <= self.segments.shape[1])

    def empty_for(self, events: int) -> None:
        """Empty the segments and make each large enough for `events`, or as large as allowed."""
        threads, capacity = len(self.counters), min(max(events, SEGMENT_EVENTS), self._most)
        self.segments = self._words[: threads * capacity * RECORD_WORDS].reshape(
            threads, capacity, RECORD_WORDS
        )
        self.counters[:] = 0
        self.passes = []

    def counts(self) -> Counts:
        """(threads, 2) how many events each thread has written and dropped."""
        return self.counters[:, :COUNTERS].copy()

    def used(self) -> list[Words]:
        """The events of each segment."""
        counts = self.counters[:, USED].tolist()
        return [self.segments[thread, :count] for thread, count in enumerate(counts)]

    def store(self, spool: Spool) -> None:
        """Append segment after segment to the spool; its passes know where each begins."""
        bytes_used = self.counters[:, USED] * RECORD.itemsize
        begins = spool.append(self.used()) + np.cumsum(bytes_used) - bytes_used
        for traced in self.passes:
            traced.begins = begins

"""Oracles of a whole run, which no single flush can violate."""

import math
from collections import defaultdict
from typing import Protocol

import numpy as np

from kvscope.api.oracles import oracle
from kvscope_kernels import kv_events
from kvscope_kernels.arraytypes import Bools, Int64s
from kvscope_kernels.collect.clock import EventClock
from kvscope_kernels.collect.flushes import Flush
from kvscope_kernels.oracles.coverage import Coverage
from kvscope_kernels.oracles.flush_counts import FlushCounts, Places, as_slice
from kvscope_kernels.oracles.run_facts import RunFacts

ENOUGH_GAPS = 60
MOST_GAP_PER_DURATION = 2.0
MOST_GAP_PER_READ = 0.5  # on a CPU, where reads follow each other closely
SHORT_GAP_NS, SHORT_GAP_OF_WRITES_NS = 50.0, 250.0
QUIET = 0.1  # the share of gaps that are short
MOST_COUNTED = 1 << 14  # ticks
SHORT_GAP_STEPS = 5  # or so many steps of the clock, if that is more


class Gaps:
    """Gaps between successive events of a worker, and durations of the first, in ticks, by kind.

    Of each flush the first decile of the gaps, which other load hardly lengthens, and the median
    duration are kept. Of a run, the median of either is taken, weighted by the number of gaps.
    """

    def __init__(self) -> None:
        self.on_gpu = False
        self._medians: dict[int, list[tuple[int, float, float]]] = defaultdict(list)

    def add(self, counts: FlushCounts) -> None:
        """Add a flush."""
        self.on_gpu |= counts.flush.segments.timers is not None
        for kind, (between, took) in gaps(counts).items():
            count = len(between)
            (short,) = _ranked(between, max(math.ceil(count * QUIET - 1), 0))
            middle = _ranked(took, (count - 1) // 2, count // 2)
            self._medians[kind].append((count, short, sum(middle) / 2))

    def medians(self, kind: int) -> tuple[float, float] | None:
        """The short gap and usual duration of a kind, in ticks; None if there are too few gaps."""
        weights, *values = np.array(self._medians[kind] or [(0, 0.0, 0.0)]).T
        if weights.sum() < ENOUGH_GAPS:
            return None
        gap, took = (
            float(np.quantile(value, 0.5, weights=weights, method="inverted_cdf"))
            for value in values
        )
        return gap, took


class RunCounts(Protocol):
    """State that a Judge keeps over all flushes of a run."""

    run: RunFacts
    coverage: Coverage
    gaps: Gaps
    events: int
    dropped: int


def passes_missing(counts: RunCounts) -> oracle.Violations:
    """The trace has each traced layer of each traced pass once, and no other pass."""
    return counts.coverage.violations()


def counts_differ(counts: RunCounts) -> oracle.Violations:
    """run.json counts as many events and drops as the trace has."""
    expected = counts.run.counted
    counted = counts.events, counts.dropped
    words = "{} events and {} drops, run.json has {} and {}"
    return (
        oracle.NONE
        if expected in (None, counted)
        else oracle.Violations(1, words.format(*counted, *expected))
    )


def clock_factor_wrong(counts: RunCounts) -> oracle.Violations | None:
    """Time stamps enclose their event, and its duration has the unit of its start.

    Otherwise the gap between an event and its worker's next one is too long. It is measured for at
    least 60 pairs of a kind; for reads, the next event is that of the next block. The short gaps,
    their first decile, must not exceed twice the median duration; for reads on a CPU, they must not
    exceed half of it either, unless they are at most 50 ns or five steps of the clock. For writes,
    the check is made on a CPU only, and gaps of up to 250 ns are allowed. Modeled events follow
    each other without a gap.
    """
    medians = {kind: counts.gaps.medians(kind) for kind in range(len(kv_events.KINDS))}
    measured = {kind: values for kind, values in medians.items() if values is not None}
    wide = [
        kind
        for kind, (gap, took) in measured.items()
        if _is_wide(kind, gap, took, counts.gaps.on_gpu, counts.run.clock)
    ]
    if not wide:
        return oracle.NONE if measured else None
    between, took = measured[wide[0]]
    words = (
        f"the short gaps after a {kv_events.KINDS[wide[0]]} are {between:.0f} ticks, its median "
        f"duration is {took:.0f}: stamps do not enclose the event, or its duration is in another "
        "unit than its start"
    )
    return oracle.Violations(len(wide), words)


def _is_wide(kind: int, gap: float, took: float, on_gpu: bool, clock: EventClock) -> bool:
    if clock.virtual:
        return gap > 0
    wide = gap > MOST_GAP_PER_DURATION * took
    if kind <= kv_events.V_READ and not on_gpu:
        wide |= gap > max(MOST_GAP_PER_READ * took, _ticks(clock, SHORT_GAP_NS))
    elif kind > kv_events.V_READ:  # the next piece is elsewhere, and may be one token
        wide &= gap > _ticks(clock, SHORT_GAP_OF_WRITES_NS) and not on_gpu
    return wide


def _ticks(clock: EventClock, short_ns: float) -> float:
    """Ticks of a gap that is long enough to record an event, and so shows nothing."""
    return max(short_ns, SHORT_GAP_STEPS * clock.resolution_ns) / float(clock.slopes[0])


def gaps(counts: FlushCounts) -> dict[int, tuple[Int64s, Int64s]]:
    """Gap to the worker's next event, and duration of the event, in ticks, by kind.

    For reads, pairs where the worker continues with the next block of the same request and head:
    K to K, V to V, or, where K and V alternate, V to the next block's K. For writes, all pairs.
    """
    flush, reads, writes = counts.flush, counts.reads, counts.writes
    if flush.kv_heads is None or len(flush) < 2:
        return {}
    onward = reads.onward & (reads.kind[1:] <= reads.kind[:-1])
    neighbours = (np.diff(writes) == 1) & (np.diff(flush.segment[writes]) == 0)
    return _gaps(flush, reads.own, onward) | _gaps(flush, as_slice(writes), neighbours)


def _ranked(ticks: Int64s, *ranks: int) -> list[int]:
    """The values at these ranks from 0, ascending, where negative ones count as 0.

    Most are small, and counted several times faster than sorted.
    """
    counts = np.bincount(ticks.clip(0, MOST_COUNTED))
    selected = np.searchsorted(np.cumsum(counts), ranks, side="right")
    if selected.max() == MOST_COUNTED:
        selected = np.partition(ticks, ranks)[[*ranks]].clip(min=0)
    values: list[int] = selected.tolist()
    return values


def _gaps(flush: Flush, places: Places, follows: Bools) -> dict[int, tuple[Int64s, Int64s]]:
    """Gaps and durations of these events, for each that the next one `follows`."""
    between = flush.start_ticks[places][1:] - flush.end_ticks[places][:-1]
    took, kind = flush.duration_ticks[places][:-1], flush.kind[places][:-1]
    of_kind = {k: follows & (kind == k) for k in range(len(kv_events.KINDS))}
    return {k: (between[those], took[those]) for k, those in of_kind.items() if those.any()}

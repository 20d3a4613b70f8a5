"""Oracles of a run as a whole, which no single flush can contradict."""

from collections import defaultdict
from typing import Protocol

import numpy as np

from kvscope.arraytypes import Int64s
from kvscope.collect.kv.clock import Clock
from kvscope.collect.oracles.coverage import Coverage
from kvscope.collect.oracles.flush_counts import FlushCounts
from kvscope.collect.oracles.run_facts import RunFacts
from kvscope.events import KINDS, V_READ
from kvscope.oracle import NONE, Violations

ENOUGH_GAPS = 60
MOST_GAP_PER_DURATION = 2.0
MOST_GAP_PER_READ = 0.5  # on a CPU, where reads follow each other closely
SHORT_GAP_NS, SHORT_GAP_OF_WRITES_NS = 50.0, 250.0
SHORT_GAP_STEPS = 5  # or so many steps of the clock, if that is more


class Gaps:
    """Ticks between neighbouring events of one worker, and ticks that the former took, by kind.

    Of each flush the medians are kept: the median over a run is that of its flushes, each counted
    as often as it has gaps.
    """

    def __init__(self) -> None:
        self.on_gpu = False
        self._medians: dict[int, list[tuple[int, float, float]]] = defaultdict(list)

    def add(self, counts: FlushCounts) -> None:
        """Take in a flush."""
        self.on_gpu |= counts.flush.segments.timers is not None
        for kind, (between, took) in gaps(counts).items():
            medians = float(np.median(between.clip(min=0))), float(np.median(took))
            self._medians[kind].append((len(between), *medians))

    def medians(self, kind: int) -> tuple[float, float] | None:
        """The median gap and duration of a kind, in ticks; None if there are too few gaps."""
        weights, *values = np.array(self._medians[kind] or [(0, 0.0, 0.0)]).T
        if weights.sum() < ENOUGH_GAPS:
            return None
        gap, took = (
            float(np.quantile(value, 0.5, weights=weights, method="inverted_cdf"))
            for value in values
        )
        return gap, took


class RunCounts(Protocol):
    """What is kept of all flushes of a run."""

    run: RunFacts
    coverage: Coverage
    gaps: Gaps


def passes_missing(counts: RunCounts) -> Violations:
    """Of every pass that was to be traced each traced layer comes once, and no other pass comes."""
    return counts.coverage.violations()


def clock_factor_wrong(counts: RunCounts) -> Violations | None:
    """Stamps are around their event, and its duration is in the unit of its start.

    Then the gap between an event and the next of its worker (of reads, the next block's) is short.
    It is too wide if the median gap of 60 pairs or more of a kind exceeds twice the median duration
    (of writes, and 250 ns, on a CPU only), or, of reads on a CPU, half of it and 50 ns or five
    steps of the clock.
    """
    medians = {kind: counts.gaps.medians(kind) for kind in range(len(KINDS))}
    known = {kind: found for kind, found in medians.items() if found is not None}
    wide = [
        kind
        for kind, (gap, took) in known.items()
        if _is_wide(kind, gap, took, counts.gaps.on_gpu, counts.run.clock)
    ]
    if not wide:
        return NONE if known else None
    between, took = known[wide[0]]
    words = (
        f"after a {KINDS[wide[0]]} its worker does nothing for {between:.0f} ticks in the median, "
        f"and the event takes {took:.0f}: its stamps are not around it, or its duration is not in "
        "the unit of its start"
    )
    return Violations(len(wide), words)


def _is_wide(kind: int, gap: float, took: float, on_gpu: bool, clock: Clock) -> bool:
    wide = gap > MOST_GAP_PER_DURATION * took
    if kind <= V_READ and not on_gpu:
        wide |= gap > max(MOST_GAP_PER_READ * took, _ticks(clock, SHORT_GAP_NS))
    elif kind > V_READ:  # the next piece is elsewhere, and may be one token
        wide &= gap > _ticks(clock, SHORT_GAP_OF_WRITES_NS) and not on_gpu
    return wide


def _ticks(clock: Clock, short_ns: float) -> float:
    """A gap that is too short to mean anything: an event is logged in it."""
    return max(short_ns, SHORT_GAP_STEPS * clock.resolution_ns) / float(clock.slopes[0])


def gaps(counts: FlushCounts) -> dict[int, tuple[Int64s, Int64s]]:
    """Of each kind: ticks between an event's end and the start of the one its worker does next,
    and ticks that the former took.

    Of reads, where the worker goes on to the next block of the same request and head: from K to K,
    from V to V, or, where K and V take turns, from V to the next block's K. Of writes, all.
    """
    flush, reads = counts.flush, counts.reads
    if flush.kv_heads is None or len(flush) < 2:
        return {}
    onward = reads.same_owner & (reads.position_step == 1) & (reads.kind[1:] <= reads.kind[:-1])
    one, other = reads.at[:-1][onward], reads.at[1:][onward]
    writes = np.flatnonzero(~counts.is_read)
    neighbours = (np.diff(writes) == 1) & (np.diff(flush.segment[writes]) == 0)
    one = np.concatenate([one, writes[:-1][neighbours]])
    other = np.concatenate([other, writes[1:][neighbours]])
    between = flush.start_ticks[other] - flush.end_ticks[one]
    took, kind = flush.duration_ticks[one], flush.kind[one]
    return {k: (between[kind == k], took[kind == k]) for k in np.unique(kind).tolist()}

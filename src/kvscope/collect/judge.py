"""A run's verdict: every oracle over every flush, and those that need the run as a whole."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from kvscope.collect.arrays import Int64s
from kvscope.collect.arrivals import Arrivals
from kvscope.collect.clock import Clock
from kvscope.collect.evidence import Evidence
from kvscope.collect.flushes import Flush
from kvscope.collect.holdings import Holdings
from kvscope.collect.host import HostRecords
from kvscope.collect.known import Known
from kvscope.collect.oracles import ORACLES
from kvscope.collect.oracles_of_time import gaps
from kvscope.collect.owed import Owed, owed_events
from kvscope.events import ATTENTION, KINDS, V_READ, WRITE
from kvscope.oracle import NONE, Oracle, Verdict, Violations, verdict

ENOUGH_GAPS = 60
MOST_GAP_PER_DURATION = 2.0
MOST_GAP_PER_READ = 0.5  # on a CPU, where reads follow each other closely
SHORT_GAP_NS, SHORT_GAP_OF_WRITES_NS = 50.0, 250.0
SHORT_GAP_STEPS = 5  # or so many steps of the clock, if that is more
_BINS_PER_OCTAVE = 16
_ENOUGH_VALUES = 4096  # of one flush


# What is missing where events were dropped; said once, as `events_dropped`.
DUE_TO_DROPS = ("k_reads_missing", "v_reads_missing", "heads_missing", "tokens_not_written")


def drops_explain_gaps(flush: Flush, owed: Owed) -> bool:
    """Whether a flush has drops, and with them as many events as its batch owes."""
    dropped = flush.segments.dropped
    if dropped is None or not dropped.any():
        return False
    due = sum(owed_events(flush, kernel, owed) for kernel in (WRITE, ATTENTION))
    return bool(len(flush) + dropped.sum() == due)


class Median:
    """The median of any number of values of at least 0, to 1/16 octave, in constant memory."""

    def __init__(self) -> None:
        self.bins = np.zeros(64 * _BINS_PER_OCTAVE, np.int64)

    def add(self, values: Int64s) -> None:
        """Count values in, a few thousand of them at most; negative ones count as 0."""
        values = values[:: 1 + len(values) // _ENOUGH_VALUES]
        bins = (_BINS_PER_OCTAVE * np.log2(np.maximum(values, 0) + 1.0)).astype(np.int64)
        self.bins += np.bincount(bins, minlength=len(self.bins))

    @property
    def count(self) -> int:
        """How many were counted."""
        return int(self.bins.sum())

    @property
    def value(self) -> float:
        """The median: the middle of the bin that it lies in."""
        place = int(np.searchsorted(np.cumsum(self.bins), (self.count + 1) // 2))
        return float(2.0 ** ((place + 0.5) / _BINS_PER_OCTAVE) - 1.0) if place else 0.0


class Judge:
    """Looks at a run's flushes one after the other and keeps what they violate."""

    def __init__(self, known: Known) -> None:
        self.known = known
        self.counts: Counter[str] = Counter()
        self.looked: Counter[str] = Counter()  # flushes that an oracle applied to
        self.first: dict[str, str] = {}
        self.gaps = {kind: (Median(), Median()) for kind in range(len(KINDS))}
        self.on_gpu = False
        self.arrivals = Arrivals(known)
        self.holdings = None if known.preempted is None else Holdings(known.preempted)

    @classmethod
    def of_run(cls, host: HostRecords) -> "Judge":
        """For the events of a traced run; BadInput if its run.json has no clock for them."""
        return cls(Known.of_run(host))

    @property
    def clock(self) -> Clock:
        """The clock of the events."""
        return self.known.clock

    def look(self, flush: Flush) -> None:
        """Hold every oracle against a flush."""
        self.arrivals.add(flush)
        moved = None if self.holdings is None else self.holdings.moved(flush)
        evidence = Evidence(flush, self.known, moved)
        explained = DUE_TO_DROPS if drops_explain_gaps(flush, evidence.owed) else ()
        for oracle in ORACLES:
            found = oracle.look(evidence)
            if found is None:
                continue
            self.looked[oracle.name] += 1
            if found and oracle.name not in explained:
                self.counts[oracle.name] += found.count
                self.first.setdefault(oracle.name, f"{flush.where}: {found.first}")
        self.on_gpu |= flush.segments.timers is not None
        for kind, found_gaps in gaps(evidence).items():
            for median, values in zip(self.gaps[kind], found_gaps, strict=True):
                median.add(values)

    def verdict(self) -> dict[str, dict[str, Any]]:
        """Of every oracle: `violations`, the `first` in words, and what it was `looked` for in.

        That is flushes, or 1 for an oracle of the run as a whole; 0 if it did not apply.
        """
        told = {
            oracle.name: _told(
                self.counts[oracle.name], self.first.get(oracle.name, ""), self.looked[oracle.name]
            )
            for oracle in ORACLES
        }
        for whole in ORACLES_OF_RUN:
            found = whole.look(self)
            told[whole.name] = _told(0, "", 0) if found is None else _told(found.count, found.first)
        return told


def _told(violations: int, first: str, looked: int = 1) -> dict[str, Any]:
    return {"violations": violations, "first": first, "looked": looked}


def passes_missing(judge: Judge) -> Violations | None:
    """Of every pass that was to be traced each traced layer comes once, and no other pass comes."""
    return judge.arrivals.wrong() if judge.known.passes else None


def clock_factor_wrong(judge: Judge) -> Violations | None:
    """Stamps are around their event, and its duration is in the unit of its start.

    Told by the median gap between neighbouring events, which is short if that is so.
    """
    enough = [kind for kind, (gap, _) in judge.gaps.items() if gap.count >= ENOUGH_GAPS]
    wide = [kind for kind in enough if _gap_is_wide(judge, kind)]
    if not enough or not wide:
        return NONE if enough else None
    between, took = (median.value for median in judge.gaps[wide[0]])
    words = (
        f"after a {KINDS[wide[0]]} its worker does nothing for {between:.0f} ticks in the median, "
        f"and the event takes {took:.0f}: its stamps are not around it, or its duration is not in "
        "the unit of its start"
    )
    return Violations(len(wide), words)


def _gap_is_wide(judge: Judge, kind: int) -> bool:
    gap, duration = (median.value for median in judge.gaps[kind])
    wide = gap > MOST_GAP_PER_DURATION * duration
    if kind <= V_READ and not judge.on_gpu:
        wide |= gap > max(MOST_GAP_PER_READ * duration, _ticks(judge.clock, SHORT_GAP_NS))
    elif kind > V_READ:  # the next piece is elsewhere, and may be one token
        wide &= gap > _ticks(judge.clock, SHORT_GAP_OF_WRITES_NS) and not judge.on_gpu
    return wide


def _ticks(clock: Clock, short_ns: float) -> float:
    """A gap that is too short to mean anything: an event is logged in it."""
    return max(short_ns, SHORT_GAP_STEPS * clock.resolution_ns) / float(clock.slopes[0])


ORACLES_OF_RUN: tuple[Oracle[Judge], ...] = (
    Oracle(passes_missing, "KV events"),
    Oracle(clock_factor_wrong, "KV events"),
)
ALL_ORACLES: tuple[Oracle[Any], ...] = (*ORACLES, *ORACLES_OF_RUN)
NAMES = tuple(oracle.name for oracle in ALL_ORACLES)


def verdicts(account: dict[str, dict[str, Any]]) -> list[Verdict]:
    """Every oracle's verdict, from what `Judge.verdict` gave and collect.json has kept.

    An oracle that the account does not know of did not apply when it was written.
    """
    made = []
    for oracle in ALL_ORACLES:
        told = account.get(oracle.name)
        found = None
        if told is not None and (told.get("looked", 1) or told["violations"]):
            found = Violations(told["violations"], told["first"])
        made.append(verdict(oracle, found))
    return made


def judged(flushes: Iterable[Flush], judge: Judge) -> dict[str, dict[str, Any]]:
    """The verdict on flushes that are not kept."""
    for flush in flushes:
        judge.look(flush)
    return judge.verdict()

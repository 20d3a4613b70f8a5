"""A run's verdict: every oracle over every flush, and those that need the run as a whole."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvscope.collect.arrays import Int64s
from kvscope.collect.clock import Clock
from kvscope.collect.evidence import Evidence
from kvscope.collect.flushes import Flush
from kvscope.collect.host import HostRecords, duration_ns
from kvscope.collect.oracles import ORACLES
from kvscope.collect.oracles_of_time import gaps
from kvscope.collect.owed import Owed, owed_events
from kvscope.collect.schedule import Schedule
from kvscope.kinds import ATTENTION, KINDS, V_READ, WRITE

CLOCK_FACTOR_WRONG = "clock_factor_wrong"
KERNEL_OUTSIDE_LAYER = "kernel_outside_layer"
PASSES_MISSING = "passes_missing"
BATCH_DIFFERS = "batch_differs"
NAMES = (*ORACLES, CLOCK_FACTOR_WRONG, KERNEL_OUTSIDE_LAYER, PASSES_MISSING, BATCH_DIFFERS)

# Two readings of the same clock, one by the engine's Python, one beside the kernel.
LAYER_TOLERANCE_NS = 1_000
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


@dataclass(frozen=True)
class Layers:
    """When each layer of each pass ran, on the host's clock, found by (repeat, step, layer)."""

    intervals: dict[tuple[int, int, int], tuple[int, int]]

    @classmethod
    def of_run(cls, host: HostRecords) -> "Layers":
        """From layers.parquet; none where the run has not recorded them."""
        frame = host.layers
        start = host.ns(frame["repeat"], frame["start_s"])
        end = start + duration_ns(frame["duration_s"])
        keys = zip(frame["repeat"], frame["step"], frame["layer"], strict=True)
        return cls(dict(zip(keys, zip(start.tolist(), end.tolist(), strict=True), strict=True)))

    def sticking_out_ns(self, flush: Flush, clock: Clock) -> int:
        """How far the flush's kernels lie outside of their layer; 0 where nobody can tell.

        BadInput if the clock does not reach them. A GPU runs its kernels after the host has gone
        on: nothing is expected of it.
        """
        layer = self.intervals.get((flush.repeat, flush.step, flush.layer))
        known = [k for k in flush.kernels if k.start_ticks is not None and k.end_ticks is not None]
        ends = np.array([[k.start_ticks, k.end_ticks] for k in known], np.int64)
        start, end = clock.ns(ends.ravel(), flush.origin_ticks).reshape(-1, 2).T
        if layer is None or not known or flush.segments.timers is not None:
            return 0
        return max(0, layer[0] - int(start.min()), int(end.max()) - layer[1])


def flushes_due(host: HostRecords) -> dict[tuple[int, int], int]:
    """How many layers of each (repeat, step) were to be traced; nothing is known of imports."""
    tracing = host.run.get("tracing") or {}
    if "step_stride" not in tracing:
        return {}
    steps = host.steps[host.steps["step"] % tracing["step_stride"] == 0]
    places = zip(steps["repeat"].tolist(), steps["step"].tolist(), strict=True)
    return dict.fromkeys(places, len(tracing["layers"]))


class Judge:
    """Looks at a run's flushes one after the other and keeps what they violate."""

    def __init__(
        self,
        clock: Clock,
        layers: Layers,
        due: dict[tuple[int, int], int] | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        self.clock, self.layers, self.schedule = clock, layers, schedule
        self.due = dict(due or {})  # layers of each (repeat, step) that have yet to come
        self.counts: Counter[str] = Counter()
        self.first: dict[str, str] = {}
        self.gaps = {kind: (Median(), Median()) for kind in range(len(KINDS))}
        self.on_gpu = False

    @classmethod
    def of_run(cls, host: HostRecords) -> "Judge":
        """For the events of a traced run; BadInput if its run.json has no clock for them."""
        clock, layers = Clock.of_run(host.run, host.run_json), Layers.of_run(host)
        return cls(clock, layers, flushes_due(host), Schedule(host.batch))

    def look(self, flush: Flush) -> None:
        """Hold every oracle against a flush."""
        if (place := (flush.repeat, flush.step)) in self.due:
            self.due[place] -= 1
        if self.schedule is not None and (difference := self.schedule.difference(flush)):
            self._note(BATCH_DIFFERS, 1, f"{flush.where}: {difference}")
        evidence = Evidence(flush)
        explained = DUE_TO_DROPS if drops_explain_gaps(flush, evidence.owed) else ()
        for name, oracle in ORACLES.items():
            found = oracle(evidence)
            if found.count and name not in explained:
                self._note(name, found.count, f"{flush.where}: {found.first}")
        self.on_gpu |= flush.segments.timers is not None
        for kind, found_gaps in gaps(evidence).items():
            for median, values in zip(self.gaps[kind], found_gaps, strict=True):
                median.add(values)
        out_ns = self.layers.sticking_out_ns(flush, self.clock)
        if out_ns > self.clock.uncertainty_ns + LAYER_TOLERANCE_NS:
            words = f"{flush.where}: a kernel lies {out_ns} ns outside of its layer"
            self._note(KERNEL_OUTSIDE_LAYER, 1, words)

    def _ticks(self, short_ns: float) -> float:
        """A gap that is too short to mean anything: an event is logged in it."""
        least_ns = max(short_ns, SHORT_GAP_STEPS * self.clock.resolution_ns)
        return least_ns / float(self.clock.slopes[0])

    def _note(self, name: str, count: int, words: str) -> None:
        self.counts[name] += count
        self.first.setdefault(name, words)

    def verdict(self) -> dict[str, dict[str, Any]]:
        """Every oracle's violations and the first of them, 0 and '' where it holds."""
        for kind, (between, took) in self.gaps.items():
            gap, duration = between.value, took.value
            wide = gap > MOST_GAP_PER_DURATION * duration
            if kind <= V_READ and not self.on_gpu:
                wide |= gap > max(MOST_GAP_PER_READ * duration, self._ticks(SHORT_GAP_NS))
            elif kind > V_READ:  # the next piece is elsewhere, and may be one token
                wide &= gap > self._ticks(SHORT_GAP_OF_WRITES_NS) and not self.on_gpu
            if between.count >= ENOUGH_GAPS and wide:
                words = (
                    f"after a {KINDS[kind]} its worker does nothing for {gap:.0f} ticks in the "
                    f"median, and the event takes {duration:.0f}: its stamps are not around it, or "
                    "its duration is not in the unit of its start"
                )
                self._note(CLOCK_FACTOR_WRONG, 1, words)
        for (repeat, step), layers in self.due.items():
            if layers:
                words = f"repeat {repeat}, step {step}: {abs(layers)} layers too "
                self._note(PASSES_MISSING, abs(layers), words + ("few" if layers > 0 else "many"))
        self.due = {}
        return {
            name: {"violations": self.counts[name], "first": self.first.get(name, "")}
            for name in NAMES
        }


def judged(flushes: Iterable[Flush], judge: Judge) -> dict[str, dict[str, Any]]:
    """The verdict on flushes that are not kept."""
    for flush in flushes:
        judge.look(flush)
    return judge.verdict()

"""A run's verdict: every oracle over every flush, and those of the run as a whole."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from kvscope.collect.kv.clock import Clock
from kvscope.collect.kv.flushes import Flush
from kvscope.collect.oracles.block_tables import BlockTables
from kvscope.collect.oracles.coverage import Coverage
from kvscope.collect.oracles.flush_counts import FlushCounts
from kvscope.collect.oracles.of_runs import Gaps
from kvscope.collect.oracles.registry import OF_FLUSHES, OF_RUNS
from kvscope.collect.oracles.run_facts import RunFacts
from kvscope.events import KERNELS
from kvscope.results import Run

# What is missing where events were dropped; reported once, as `events_dropped`.
DUE_TO_DROPS = ("k_reads_missing", "v_reads_missing", "heads_missing", "tokens_not_written")


class Judge:
    """Looks at a run's flushes one after the other and keeps what they violate."""

    def __init__(self, run: RunFacts) -> None:
        self.run = run
        self.coverage = Coverage(run)
        self.gaps = Gaps()
        self._block_tables = None if run.preempted is None else BlockTables(run.preempted)
        self._counts: Counter[str] = Counter()
        self._looked: Counter[str] = Counter()  # flushes that an oracle applied to
        self._first: dict[str, str] = {}

    @classmethod
    def of_run(cls, run: Run) -> "Judge":
        """For the events of a traced run; BadInput if its run.json has no clock for them."""
        return cls(RunFacts.of_run(run))

    @property
    def clock(self) -> Clock:
        """The clock of the events."""
        return self.run.clock

    def look(self, flush: Flush) -> None:
        """Hold every oracle against a flush."""
        moved = None if self._block_tables is None else self._block_tables.moved(flush)
        counts = FlushCounts(flush, self.run, moved)
        self.coverage.add(flush)
        self.gaps.add(counts)
        explained = DUE_TO_DROPS if _drops_explain_gaps(counts) else ()
        for oracle in OF_FLUSHES:
            found = oracle.check(counts)
            if found is None:
                continue
            self._looked[oracle.name] += 1
            if found and oracle.name not in explained:
                self._counts[oracle.name] += found.count
                self._first.setdefault(oracle.name, f"{flush.where}: {found.first}")

    def verdict(self) -> dict[str, dict[str, Any]]:
        """Of every oracle: `violations`, the `first` in words, and what it was `looked` for in.

        That is flushes, or 1 for an oracle of the run as a whole; 0 if it did not apply.
        """
        kept = {
            name: (self._counts[name], self._first.get(name, ""), self._looked[name])
            for name in (oracle.name for oracle in OF_FLUSHES)
        }
        for oracle in OF_RUNS:
            found = oracle.check(self)
            kept[oracle.name] = (0, "", 0) if found is None else (found.count, found.first, 1)
        keys = ("violations", "first", "looked")
        return {name: dict(zip(keys, values, strict=True)) for name, values in kept.items()}


def _drops_explain_gaps(counts: FlushCounts) -> bool:
    """Whether a flush has drops, and with them as many events as its batch demands."""
    dropped = counts.flush.segments.dropped
    if dropped is None or not dropped.any():
        return False
    due = sum(counts.demand.events(kernel) for kernel in KERNELS)
    return bool(len(counts.flush) + dropped.sum() == due)


def judged(flushes: Iterable[Flush], judge: Judge) -> dict[str, dict[str, Any]]:
    """The verdict on flushes that are not kept."""
    for flush in flushes:
        judge.look(flush)
    return judge.verdict()

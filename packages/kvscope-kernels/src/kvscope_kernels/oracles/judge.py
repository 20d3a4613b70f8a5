"""The judge of KV events: runs the oracles on each flush, and those of the whole run at its end."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from kvscope.api.runs import RunData
from kvscope_kernels import kv_events
from kvscope_kernels.collect.clock import EventClock
from kvscope_kernels.collect.flushes import Flush
from kvscope_kernels.oracles.block_tables import BlockTables
from kvscope_kernels.oracles.coverage import Coverage
from kvscope_kernels.oracles.flush_counts import FlushCounts
from kvscope_kernels.oracles.registry import OF_FLUSHES, OF_RUNS
from kvscope_kernels.oracles.run_facts import RunFacts
from kvscope_kernels.oracles.whole_run import Gaps

# Violations that drops explain; they are reported once, as `events_dropped`.
DUE_TO_DROPS = ("k_reads_missing", "v_reads_missing", "heads_missing", "tokens_not_written")


class Judge:
    """Counts the violations of every oracle over the flushes of a run, added one by one."""

    def __init__(self, run: RunFacts) -> None:
        self.run = run
        self.coverage = Coverage(run)
        self.events = self.dropped = 0
        self.gaps = Gaps()
        self._block_tables = None if run.preempted is None else BlockTables(run.preempted)
        self._counts: Counter[str] = Counter()
        self._applied: Counter[str] = Counter()  # flushes that the oracle applied to
        self._first: dict[str, str] = {}

    @classmethod
    def of_run(cls, run: RunData) -> "Judge":
        """The judge of a traced run. Raises BadInput if its run.json has no clock for KV events."""
        return cls(RunFacts.of_run(run))

    @property
    def clock(self) -> EventClock:
        """The clock of the events."""
        return self.run.clock

    def add(self, flush: Flush) -> FlushCounts:
        """Check a flush by every oracle of flushes; return its counts."""
        moved = None if self._block_tables is None else self._block_tables.find_moves(flush)
        counts = FlushCounts(flush, self.run, moved)
        self.coverage.add(flush)
        self.events += int(flush.segments.events.sum())
        self.dropped += 0 if flush.segments.dropped is None else int(flush.segments.dropped.sum())
        self.gaps.add(counts)
        explained = DUE_TO_DROPS if _drops_explain_gaps(counts) else ()
        for oracle in OF_FLUSHES:
            violations = oracle.check(counts)
            if violations is None:
                continue
            self._applied[oracle.name] += 1
            if violations and oracle.name not in explained:
                self._counts[oracle.name] += violations.count
                self._first.setdefault(oracle.name, f"{flush.where}: {violations.first}")
        return counts

    def account(self) -> dict[str, dict[str, Any]]:
        """For every oracle: `violations`, the `first` in words, and `looked`.

        `looked` is the number of flushes that the oracle applied to; for an oracle of the whole run
        1, or 0 if it did not apply. collect.json stores this.
        """
        kept = {
            name: (self._counts[name], self._first.get(name, ""), self._applied[name])
            for name in (oracle.name for oracle in OF_FLUSHES)
        }
        for oracle in OF_RUNS:
            violations = oracle.check(self)
            kept[oracle.name] = (
                (0, "", 0) if violations is None else (violations.count, violations.first, 1)
            )
        keys = ("violations", "first", "looked")
        return {name: dict(zip(keys, values, strict=True)) for name, values in kept.items()}


def _drops_explain_gaps(counts: FlushCounts) -> bool:
    """True if events and drops of a flush add up to the events that its batch demands."""
    dropped = counts.flush.segments.dropped
    if dropped is None or not dropped.any():
        return False
    expected = sum(counts.demand.events(kernel) for kernel in kv_events.KERNELS)
    return bool(len(counts.flush) + dropped.sum() == expected)


def judge_flushes(flushes: Iterable[Flush], judge: Judge) -> dict[str, dict[str, Any]]:
    """The judge's account after these flushes, which are not kept in memory."""
    for flush in flushes:
        judge.add(flush)
    return judge.account()

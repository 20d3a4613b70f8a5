"""The time for which an engine had no CPU: other load may put it between any two readings.

What an oracle says of the time between two readings holds at any speed only if it allows for this.
"""

from kvscope.judge.oracles.run_tables import RunTables
from kvscope.tables.runschema import LoadRecord, RepeatRecord


def without_cpu_s(run: RunTables) -> dict[int, float]:
    """Seconds for which the engine of each repeat waited for a CPU, by repeat.

    They have two witnesses, of which the lower counts: what the kernel says of its threads being
    ready without a CPU and of the hypervisor's share; and what the main thread's CPU time leaves of
    the repeat. 0 where neither is recorded.
    """
    load = {entry.repeat: entry for entry in run.record.load}
    waited_s = {
        entry.repeat: _without_cpu_s(entry, load.get(entry.repeat))
        for entry in run.record.clock.repeats
    }
    return {number: waited_s.get(number, 0.0) for number in run.records.numbers}


def not_running_s(run: RunTables) -> dict[int, float]:
    """Seconds for which the main thread of each repeat did not run, by repeat.

    Without a GPU every pass takes CPU time of the main thread, so that no pass is in what its CPU
    time leaves of the repeat, whether it was ready or waited for a page or a disk. With a GPU it
    also waits for that, and only time without a CPU counts (`without_cpu_s`).
    """
    waited = without_cpu_s(run)
    if run.record.hardware.gpus != []:
        return waited
    idle = {
        entry.repeat: max(0.0, entry.duration_s - entry.thread_cpu_s)
        for entry in run.record.clock.repeats
        if entry.thread_cpu_s is not None
    }
    return {number: max(idle.get(number, 0.0), seconds) for number, seconds in waited.items()}


def _without_cpu_s(entry: RepeatRecord, load: LoadRecord | None) -> float:
    took, waited, stolen = entry.duration_s, entry.waited_s, 0.0
    if waited is None:  # of an earlier version, or hidden: what is known of the main thread
        waited = min(1.0, (load and load.waiting_share) or 0.0) * took
    if load:
        stolen = (load.steal_share or 0.0) * (load.cores or 1) * took
    idle = took if entry.thread_cpu_s is None else took - entry.thread_cpu_s
    return max(0.0, min(waited + stolen, idle))

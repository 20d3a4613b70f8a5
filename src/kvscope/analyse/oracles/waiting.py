"""The time for which an engine had no CPU: other load may put it between any two readings.

What an oracle says of the time between two readings holds at any speed only if it allows for this.
"""

import pandas as pd

from kvscope.analyse.oracles.run_tables import RunTables


def without_cpu_s(run: RunTables) -> pd.Series:
    """Seconds for which the engine of each repeat did not run, indexed by repeat.

    Without a GPU every pass takes CPU time of the main thread: what that leaves of the repeat is
    time without a CPU, whether the thread was ready or waited for a page or a disk. With a GPU the
    main thread also waits for that. Then there are two witnesses, of which the lower counts: what
    the kernel says of threads being ready without a CPU and of the hypervisor's share; and what the
    main thread's CPU time leaves. 0 where none is recorded.
    """
    clock = run.facts.get("clock") or {}
    load = {entry["repeat"]: entry for entry in run.facts.get("disturbance") or []}
    without_gpu = (run.facts.get("hardware") or {}).get("gpus") == []
    found = {
        entry["repeat"]: _without_cpu_s(entry, load.get(entry["repeat"], {}), without_gpu)
        for entry in clock.get("repeats", [])
    }
    return pd.Series(found, dtype=float).reindex(run.records.numbers, fill_value=0.0)


def _without_cpu_s(
    entry: dict[str, float | None], load: dict[str, float | None], without_gpu: bool
) -> float:
    took, cpu_s = entry["duration_s"] or 0.0, entry.get("thread_cpu_s")
    if without_gpu and cpu_s is not None:
        return max(0.0, took - cpu_s)
    waited = entry.get("waited_s")
    if waited is None:  # of an earlier version, or hidden: what is known of the main thread
        waited = min(1.0, load.get("waiting_share") or 0.0) * took
    stolen = (load.get("steal_share") or 0.0) * (load.get("cores") or 1) * took
    idle = took if cpu_s is None else took - cpu_s
    return max(0.0, min(waited + stolen, idle))

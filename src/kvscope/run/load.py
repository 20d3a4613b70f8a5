"""Load of the machine beside a repeat: CPU time of all cores that others used, from /proc/stat.

Nothing is read while a repeat is timed. Values are null where the system hides them.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from kvscope.base.machine import system_text

STAT = Path("/proc/stat")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class CpuTime:
    """CPU seconds of all cores since the machine started, and of this process since it did."""

    busy_s: float
    stolen_s: float  # given to other machines by the hypervisor
    total_s: float
    process_s: float
    cores: int


def read_cpu_time(stat: Path = STAT) -> CpuTime | None:
    """The CPU time so far; None if the system does not tell."""
    lines = [line.split() for line in system_text(stat).splitlines() if line.startswith("cpu")]
    if not lines or len(lines[0]) < 9:
        return None
    seconds = (int(word) / TICKS_PER_S for word in lines[0][1:9])
    user, nice, system, idle, iowait, irq, softirq, stolen = seconds
    busy = user + nice + system + irq + softirq
    total = busy + idle + iowait + stolen
    return CpuTime(busy, stolen, total, time.process_time(), max(1, len(lines) - 1))


def load_between(before: CpuTime | None, after: CpuTime | None) -> dict[str, float | None]:
    """The entry of run.json for the time between two readings: shares of the time of all cores."""
    if before is None or after is None or after.total_s <= before.total_s:
        return {"cores": None, "steal_share": None, "other_cpu_share": None}
    total_s = after.total_s - before.total_s
    others_s = after.busy_s - before.busy_s - (after.process_s - before.process_s)
    return {
        "cores": after.cores,
        "steal_share": max(0.0, after.stolen_s - before.stolen_s) / total_s,
        "other_cpu_share": max(0.0, others_s) / total_s,
    }

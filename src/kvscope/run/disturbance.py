"""Other load on the machine during a repeat, and the machine's speed before and after it.

Nothing is read while a repeat is timed. Most values come from /proc; without it they are null. A
disturbed repeat stays in the tables, with the reason why it may be slow.

A process belongs to the run if it is in the session of the measured process, which the supervisor
creates and the profiler's processes share.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, median
from typing import Any

MEASURED_PROCESS = "kvscope.run.session"

# A repeat is disturbed if it exceeds any of these shares. An idle machine stays below them (system
# services take about 1 %); load above them may lengthen a repeat by a good part of the 5 % to which
# kvscope's studies measure throughput.
# Share of the machine's CPU time that the hypervisor gave to other machines. It lengthens a repeat
# by at most this share; idle virtual machines lose 1 to 4 %.
MAXIMUM_STEAL = 0.05
# Share of the machine's CPU time used by other processes. Even on other cores they compete with the
# run for caches, memory bandwidth and clock rate.
MAXIMUM_OTHERS = 0.10
# Share of the repeat in which the main thread, which every pass waits for, was ready without a CPU.
MAXIMUM_WAITING = 0.02
# Relative increase of the time of a fixed piece of work around the repeat, over its lowest time in
# the run. Neighbours of a virtual machine compete for caches and memory, which /proc does not show.
# The reads of the fixed work slow down several times more than an engine's passes, which also
# compute.
MAXIMUM_SLOWDOWN = 0.60
# Ticks (10 ms each) by which two counts of the same CPU time may differ; smaller differences are
# ignored.
NOISE_TICKS = 5


@dataclass(frozen=True)
class CpuTime:
    """CPU time of the whole machine since it started, in ticks."""

    busy: int
    steal: int
    total: int
    cores: int


@dataclass(frozen=True)
class MachineSample:
    """Cumulative counters of the machine and the run at an instant; None if not available."""

    time_s: float
    cpu: CpuTime | None = None
    own_ticks: int = 0  # CPU time of the run's processes
    waited_s: float | None = None  # of the main thread, ready and without a CPU
    switches: int | None = None  # of the main thread, involuntary
    run_queue: float | None = None
    frequency_mhz: float | None = None
    other_run: bool = False
    work_s: float | None = None  # what the fixed piece of work took


@dataclass(frozen=True)
class Process:
    """A process of /proc: its id, session and parent, and CPU time of all threads in ticks."""

    id: int
    session: int
    ticks: int
    parent: int = 0


def take_sample(
    proc: Path = Path("/proc"),
    cpus: Path = Path("/sys/devices/system/cpu"),
    work: Callable[[], float] | None = None,
) -> MachineSample:
    """Read the counters of the machine and the run; `work` times a fixed piece of work."""
    own = parse_process(_text(proc / "self/stat"))
    everyone = list(_processes(proc))
    above = ancestor_sessions(own, everyone) if own else set()
    return MachineSample(
        time_s=time.perf_counter(),
        cpu=parse_cpu_time(_text(proc / "stat")),
        own_ticks=sum(p.ticks for p in everyone if own and p.session == own.session),
        waited_s=parse_waiting_s(_text(proc / "self/schedstat")),
        switches=parse_switches(_text(proc / "self/status")),
        run_queue=parse_run_queue(_text(proc / "loadavg")),
        frequency_mhz=parse_frequency_mhz(
            (_text(path) for path in cpus.glob("cpu[0-9]*/cpufreq/scaling_cur_freq")),
            _text(proc / "cpuinfo"),
        ),
        other_run=any(
            is_measured_process(_text(proc / str(p.id) / "cmdline"))
            for p in everyone
            if own and p.session not in above
        ),
        work_s=work() if work else None,
    )


READS, TABLE_BYTES, ROUNDS = 200_000, 128 << 20, 15


def reference_work_s() -> float:
    """Seconds for 200,000 reads at random places of 128 MiB: the median of ROUNDS rounds.

    The reads wait for memory, like the passes of a small model whose code and data do not fit the
    caches. Of several candidates, this work correlates best with the slowdown of passes.
    """
    table, places = _reads()

    def round_s() -> float:
        began = time.perf_counter()
        table[places]
        return time.perf_counter() - began

    return median(round_s() for _ in range(ROUNDS))


@cache
def _reads() -> tuple[Any, Any]:
    import torch

    count = TABLE_BYTES // 4
    generator = torch.Generator().manual_seed(0)
    places = torch.randint(count, (READS,), generator=generator, device="cpu")
    return torch.ones(count, dtype=torch.float32, device="cpu"), places


def parse_cpu_time(stat: str) -> CpuTime | None:
    """Parse the text of /proc/stat; None if it lacks the fields."""
    lines = [line.split() for line in stat.splitlines() if line.startswith("cpu")]
    if not lines or len(lines[0]) < 9:
        return None
    user, nice, system, idle, iowait, irq, softirq, steal = (int(word) for word in lines[0][1:9])
    busy = user + nice + system + irq + softirq
    return CpuTime(busy, steal, busy + idle + iowait + steal, max(1, len(lines) - 1))


def parse_process(stat: str) -> Process | None:
    """Parse the text of /proc/ID/stat, where the process name may contain any characters."""
    before, _, after = stat.rpartition(")")
    words = after.split()
    if len(words) < 13:
        return None
    ticks = int(words[11]) + int(words[12])
    return Process(int(before.split()[0]), int(words[3]), ticks, int(words[1]))


def ancestor_sessions(own: Process, everyone: Iterable[Process]) -> set[int]:
    """The sessions of a process and of its ancestors; a profiler has a separate session."""
    by_id, found = {process.id: process for process in everyone}, {own.session}
    while own.parent in by_id and own.parent != own.id:
        own = by_id[own.parent]
        found.add(own.session)
    return found


def parse_waiting_s(schedstat: str) -> float | None:
    """Seconds that a thread was ready and waited for a CPU, from the text of its schedstat."""
    words = schedstat.split()
    return int(words[1]) * 1e-9 if len(words) > 1 else None


def parse_switches(status: str) -> int | None:
    """Involuntary context switches, from the text of /proc/ID/status."""
    found = [line.split()[1] for line in status.splitlines() if line.startswith("nonvoluntary")]
    return int(found[0]) if found else None


def parse_run_queue(loadavg: str) -> float | None:
    """Mean number of running and ready tasks in the last minute, from the text of loadavg."""
    return float(loadavg.split()[0]) if loadavg else None


def parse_frequency_mhz(cpufreq: Iterable[str], cpuinfo: str) -> float | None:
    """The clock rate of the fastest core in MHz, from cpufreq's texts (kHz) or from cpuinfo."""
    rates = [int(text) / 1000 for text in cpufreq if text.strip().isdecimal()]
    rates = rates or [
        float(line.partition(":")[2]) for line in cpuinfo.splitlines() if line.startswith("cpu MHz")
    ]
    return max(rates, default=None)


def is_measured_process(cmdline: str) -> bool:
    """Whether a command line (arguments ended by NUL) is that of a measured process."""
    return MEASURED_PROCESS in cmdline.split("\0")


def judge_repeats(samples: Sequence[tuple[MachineSample, MachineSample]]) -> list[dict[str, Any]]:
    """The entries of run.json for all repeats, from the samples before and after each.

    A slow machine is detected by comparison with the other repeats, so all repeats are judged again
    each time.
    """
    found = [compare_samples(before, after) for before, after in samples]
    fastest = min((each["work_s"] for each in found if each["work_s"] is not None), default=None)
    return [
        {"repeat": number, **each, "disturbed": bool(why), "why": why}
        for number, each in enumerate(found)
        for why in [", ".join(_reasons(each, fastest))]
    ]


def compare_samples(before: MachineSample, after: MachineSample) -> dict[str, Any]:
    """The load between two samples, and the mean time of the fixed work in them."""
    duration_s = after.time_s - before.time_s
    steal, others, cores = None, None, 1
    if before.cpu and after.cpu and after.cpu.total > before.cpu.total:
        total, cores = after.cpu.total - before.cpu.total, after.cpu.cores
        busy = after.cpu.busy - before.cpu.busy
        own = after.own_ticks - before.own_ticks
        steal = max(0, after.cpu.steal - before.cpu.steal - NOISE_TICKS) / total
        others = max(0, busy - own - NOISE_TICKS) / total
    waiting = _difference(after.waited_s, before.waited_s)
    works_s = [s.work_s for s in (before, after) if s.work_s is not None]
    return {
        "cores": cores,
        "steal_share": steal,
        "other_cpu_share": others,
        "waiting_share": None if waiting is None or duration_s <= 0 else waiting / duration_s,
        "involuntary_switches": _difference(after.switches, before.switches),
        "run_queue": after.run_queue,
        "frequency_mhz": after.frequency_mhz,
        "other_run": before.other_run or after.other_run,
        "work_s": fmean(works_s) if works_s else None,
    }


def _reasons(found: dict[str, Any], fastest_s: float | None) -> Iterator[str]:
    """The reasons why a repeat is disturbed, from `compare_samples` and the run's fastest work."""
    others, steal, waiting = (
        found[key] or 0.0 for key in ("other_cpu_share", "steal_share", "waiting_share")
    )
    if others > MAXIMUM_OTHERS:
        yield f"other processes used {others * found['cores']:.1f} of {found['cores']} CPUs"
    if found["other_run"]:
        yield "another run was measured at the same time"
    if steal > MAXIMUM_STEAL:
        yield f"the hypervisor took {steal:.0%} of the CPU time"
    if waiting > MAXIMUM_WAITING:
        yield f"the run waited for a CPU for {waiting:.0%} of its time"
    slowdown = found["work_s"] / fastest_s - 1 if fastest_s else 0.0
    if slowdown > MAXIMUM_SLOWDOWN:
        yield f"the same work took {slowdown:.0%} longer than around another repeat"


def _difference(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else after - before


def _processes(proc: Path) -> Iterator[Process]:
    try:
        names = os.listdir(proc)
    except OSError:
        return
    for name in names:
        if name.isdecimal() and (found := parse_process(_text(proc / name / "stat"))):
            yield found


def _text(path: Path) -> str:
    """A file's text; empty if the file does not exist or its process has ended."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""

"""Other load on the machine during a repeat, and the machine's speed before and after it.

Nothing is read while a repeat is timed. Most values come from /proc; without it they are null. A
disturbed repeat stays in the tables, with the reason why it may be slow.

Three kinds of processes use the machine. The run's own are the measured process, the profiler
around it, and what they start. Neighbours are all other processes of the pack that made the run
(`run.placement`): their load is a circumstance of the experiment, recorded, and disturbs nothing.
All others are strangers; so is a pack to an experiment that shall have its node alone.
"""

import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, median
from typing import Any

from kvscope.base.machine import system_names, system_text
from kvscope.run.placement import shared_pack
from kvscope.tables.disturbed import DisturbanceVerdict, Load, judge_repeats

PROC = Path("/proc")
MEASURED_PROCESS = "kvscope.run.session"

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
    neighbour_ticks: int = 0  # of the other processes of its pack
    waited_s: float | None = None  # of the main thread, ready and without a CPU
    switches: int | None = None  # of the main thread, involuntary
    run_queue: float | None = None
    frequency_mhz: float | None = None
    other_run: bool = False
    work_s: float | None = None  # what the fixed piece of work took


@dataclass(frozen=True)
class Process:
    """A process of /proc: its id, session and parent, and CPU time in ticks.

    The CPU time is that of all threads, and of the children that have ended: a sum over a process
    and its descendants loses nothing when one of them ends.
    """

    id: int
    session: int
    ticks: int
    parent: int = 0


@dataclass(frozen=True)
class ComputeDevice:
    """CPUs or GPU that a measured process computes on.

    Attributes
    ----------
    gpus
        as its CUDA_VISIBLE_DEVICES names them; none if it computes on CPUs; None if not known
    cores
        a bit for each core that it may use
    """

    gpus: frozenset[str] | None
    cores: int

    def is_shared_with(self, other: "ComputeDevice") -> bool:
        """Whether two processes may use the same GPU, or, without any, the same cores.

        What a process with another device needs of the cores shows in their use.
        """
        if self.gpus == frozenset() and not other.gpus:
            return bool(self.cores & other.cores)
        return self.gpus is None or other.gpus is None or bool(self.gpus & other.gpus)


def take_sample(
    proc: Path = PROC,
    cpus: Path = Path("/sys/devices/system/cpu"),
    work: Callable[[], float] | None = None,
) -> MachineSample:
    """Read the counters of the machine and the run; `work` times a fixed piece of work."""
    own = parse_process(system_text(proc / "self/stat"))
    everyone = list(_processes(proc)) if own else []
    commands = {p.id: system_text(proc / str(p.id) / "cmdline") for p in everyone}
    run = run_of(own, everyone, commands) if own else set()
    pack = shared_pack()
    named = (i for i, command in commands.items() if pack and pack in command)
    neighbours = with_descendants(named, everyone) - run
    device = device_of(proc / "self")
    return MachineSample(
        time_s=time.perf_counter(),
        cpu=parse_cpu_time(system_text(proc / "stat")),
        own_ticks=sum(p.ticks for p in everyone if p.id in run),
        neighbour_ticks=sum(p.ticks for p in everyone if p.id in neighbours),
        waited_s=parse_waiting_s(system_text(proc / "self/schedstat")),
        switches=parse_switches(system_text(proc / "self/status")),
        run_queue=parse_run_queue(system_text(proc / "loadavg")),
        frequency_mhz=parse_frequency_mhz(
            (system_text(cpus / n / "cpufreq/scaling_cur_freq") for n in system_names(cpus)),
            system_text(proc / "cpuinfo"),
        ),
        other_run=any(
            measured_directory(command) is not None
            and device.is_shared_with(device_of(proc / str(i)))
            for i, command in commands.items()
            if i not in run | neighbours
        ),
        work_s=work() if work else None,
    )


READS, TABLE_BYTES = 200_000, 128 << 20
# How often the fixed work is done: around a run's own repeats, and in rounds, where waiting for a
# CPU says more of the machine and many engines take turns.
OFTEN, SELDOM = 15, 3


def reference_work_s(times: int = OFTEN) -> float:
    """Seconds for 200,000 reads at random places of 128 MiB: the median of so many times.

    The reads wait for memory, like the passes of a small model whose code and data do not fit the
    caches. Of several candidates, this work correlates best with the slowdown of passes.
    """
    table, places = _reads()

    def once_s() -> float:
        began = time.perf_counter()
        table[places]
        return time.perf_counter() - began

    return median(once_s() for _ in range(times))


def prepare_reference_work() -> None:
    """Allocate what the fixed work reads, so that forks of this process share it."""
    _reads()


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
    if len(words) < 15:
        return None
    ticks = sum(map(int, words[11:15]))
    return Process(int(before.split()[0]), int(words[3]), ticks, int(words[1]))


@contextmanager
def open_proc() -> Iterator[tuple[int, ...]]:
    """A descriptor of /proc, or none where there is no /proc.

    A measured process in a process namespace of its own sees the machine's processes through it.
    """
    try:
        descriptor = os.open(PROC, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield ()
        return
    try:
        yield (descriptor,)
    finally:
        os.close(descriptor)


def run_of(own: Process, everyone: Sequence[Process], commands: dict[int, str]) -> set[int]:
    """The ids of a run's processes: those of its session, and all that was started with it.

    A profiler has the command line of the process that it starts, in a session of its own.
    """
    mine = measured_directory(commands.get(own.id, ""))
    session = {process.id for process in everyone if process.session == own.session}
    named = (i for i, command in commands.items() if mine and measured_directory(command) == mine)
    return session | with_descendants(named, everyone)


def with_descendants(ids: Iterable[int], everyone: Iterable[Process]) -> set[int]:
    """The ids of these processes and of their descendants."""
    children = defaultdict(list)
    for process in everyone:
        children[process.parent].append(process.id)
    found: set[int] = set()
    left = list(ids)
    while left:
        if (one := left.pop()) not in found:
            found.add(one)
            left += children[one]
    return found


def device_of(process: Path) -> ComputeDevice:
    """The device of a process, from its directory in /proc; another user's GPUs are not known."""
    status = dict(_pair(line, ":") for line in system_text(process / "status").splitlines())
    environment = dict(_pair(word, "=") for word in system_text(process / "environ").split("\0"))
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    gpus = None if visible is None else frozenset(filter(None, visible.split(",")))
    cores = status.get("Cpus_allowed", "").strip().replace(",", "")
    return ComputeDevice(gpus, int(cores, 16) if cores else -1)


def _pair(text: str, separator: str) -> tuple[str, str]:
    name, _, value = text.partition(separator)
    return name, value


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
    rates = rates or [float(rate) for rate in re.findall(r"(?m)^cpu MHz\s*: *(\d+\.?\d*)", cpuinfo)]
    return max(rates, default=None)


def measured_directory(command: str) -> str | None:
    """The run's directory in the command line of a measured process; None of any other process."""
    words = command.split("\0")
    if MEASURED_PROCESS not in words[:-1]:
        return None
    return words[words.index(MEASURED_PROCESS) + 1]


def entries(samples: Sequence[tuple[MachineSample, MachineSample]]) -> list[dict[str, Any]]:
    """The entries of run.json for all repeats, from the samples before and after each.

    A slow machine is detected by comparison with the other repeats, so all repeats are judged again
    each time.
    """
    return judged([compare_samples(before, after) for before, after in samples])


VERDICT = DisturbanceVerdict._fields
"""The keys of an entry that follow from the others."""


def judged(found: Sequence[Load]) -> list[dict[str, Any]]:
    """The entries of run.json for all repeats, from the load around each (`compare_samples`)."""
    verdicts = judge_repeats(found)
    return [
        {"repeat": number, **each, **verdict._asdict()}
        for number, (each, verdict) in enumerate(zip(found, verdicts, strict=True))
    ]


def compare_samples(before: MachineSample, after: MachineSample) -> dict[str, Any]:
    """The load between two samples, and the mean time of the fixed work in them."""
    duration_s = after.time_s - before.time_s
    steal, others, neighbours, cores = None, None, None, 1
    if before.cpu and after.cpu and after.cpu.total > before.cpu.total:
        total, cores = after.cpu.total - before.cpu.total, after.cpu.cores
        beside = after.neighbour_ticks - before.neighbour_ticks
        own = after.own_ticks - before.own_ticks
        rest = after.cpu.busy - before.cpu.busy - own - beside
        steal = max(0, after.cpu.steal - before.cpu.steal - NOISE_TICKS) / total
        others = max(0, rest - NOISE_TICKS) / total
        neighbours = max(0, beside - NOISE_TICKS) / total
    waiting = _difference(after.waited_s, before.waited_s)
    works_s = [s.work_s for s in (before, after) if s.work_s is not None]
    return {
        "cores": cores,
        "steal_share": steal,
        "other_cpu_share": others,
        "neighbour_cpu_share": neighbours,
        "waiting_share": None if waiting is None or duration_s <= 0 else waiting / duration_s,
        "involuntary_switches": _difference(after.switches, before.switches),
        "run_queue": after.run_queue,
        "frequency_mhz": after.frequency_mhz,
        "other_run": before.other_run or after.other_run,
        "work_s": fmean(works_s) if works_s else None,
    }


def _difference(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else after - before


def _processes(proc: Path) -> Iterator[Process]:
    for name in system_names(proc):
        if name.isdecimal() and (found := parse_process(system_text(proc / name / "stat"))):
            yield found

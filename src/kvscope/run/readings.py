"""Readings of the engine's clock together with others of the machine.

All times of a run are read from one clock. Other clocks are read at the same instants, to check
the durations of repeats: a clock that nothing adjusts, and CPU time.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kvscope.base.machine import system_names, system_text
from kvscope.engine.clock import Clock

NANOSECONDS = 1e-9
TRIES = 20
RAW = getattr(time, "CLOCK_MONOTONIC_RAW", None)  # of Linux and macOS
TASKS = Path("/proc/self/task")


@dataclass(frozen=True)
class Reading:
    """An instant on the engine's clock and on others, in ns, all read within `apart_ns`."""

    engine_ns: int
    raw_ns: int | None
    cpu_ns: int  # of this process
    thread_cpu_ns: int  # of this thread
    apart_ns: int
    threads: "Mapping[str, ThreadTime] | None" = None  # read just before; None if all are hidden


@dataclass(frozen=True)
class ThreadTime:
    """Times that a thread has run, and waited for a CPU, since it began."""

    ran_ns: int
    waited_ns: int


def read_clocks(clock: Clock, tries: int = TRIES) -> Reading:
    """Read all clocks at nearly the same instant: the closest of so many tries."""
    threads = read_threads({i: system_text(TASKS / i / "schedstat") for i in system_names(TASKS)})
    readings = [_read(clock) for _ in range(tries)]
    return replace(min(readings, key=lambda reading: reading.apart_ns), threads=threads)


def read_threads(schedstats: Mapping[str, str]) -> dict[str, ThreadTime] | None:
    """Running and waiting times of each thread, from schedstat; None if all are hidden."""
    words = {i: text.split() for i, text in schedstats.items()}
    times = {i: ThreadTime(int(w[0]), int(w[1])) for i, w in words.items() if len(w) > 1}
    return times or None


def threads_between(
    begin: Mapping[str, ThreadTime], end: Mapping[str, ThreadTime]
) -> tuple[float, float]:
    """Seconds that the threads ran together, and that they waited meanwhile for a CPU.

    A thread's share of waiting counts by what it ran: Σ ran · w / (1 − Σ ran · w / Σ ran) with
    w = waited / (ran + waited). So a thread that wakes up often and does little does not count for
    more than it does.
    """
    unborn = ThreadTime(0, 0)
    ran_ns, weighted_ns = 0.0, 0.0
    for i, last in end.items():
        first = begin.get(i, unborn)
        ran, waited = last.ran_ns - first.ran_ns, last.waited_ns - first.waited_ns
        if ran > 0 and waited >= 0:
            ran_ns += ran
            weighted_ns += ran * waited / (ran + waited)
    share = weighted_ns / ran_ns if ran_ns else 0.0
    return ran_ns * NANOSECONDS, ran_ns * share / (1 - share) * NANOSECONDS


def _read(clock: Clock) -> Reading:
    began_ns = clock.now_ns()
    raw_ns = None if RAW is None else time.clock_gettime_ns(RAW)
    cpu_ns, thread_cpu_ns = time.process_time_ns(), time.thread_time_ns()
    return Reading(began_ns, raw_ns, cpu_ns, thread_cpu_ns, clock.now_ns() - began_ns)


def elapsed(begin: Reading, end: Reading) -> dict[str, float | None]:
    """The entries of run.json for a repeat: seconds between two readings on each other clock."""
    raw_ns = None if end.raw_ns is None or begin.raw_ns is None else end.raw_ns - begin.raw_ns
    threads = begin.threads and end.threads and threads_between(begin.threads, end.threads)
    ran_s, waited_s = threads or (None, None)
    return {
        "ran_s": ran_s,
        "waited_s": waited_s,
        "raw_s": None if raw_ns is None else raw_ns * NANOSECONDS,
        "cpu_s": (end.cpu_ns - begin.cpu_ns) * NANOSECONDS,
        "thread_cpu_s": (end.thread_cpu_ns - begin.thread_cpu_ns) * NANOSECONDS,
        "apart_s": (begin.apart_ns + end.apart_ns) * NANOSECONDS,
    }

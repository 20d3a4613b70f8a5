"""Readings of the engine's clock together with others of the machine.

Times of a run are of one clock. Others are read at the same instants, so that a repeat's duration
can be held against them: one that nothing adjusts, and CPU time.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from kvscope.engine.clock import Clock
from kvscope.machine import system_names, system_text

NANOSECONDS = 1e-9
TRIES = 20
RAW = getattr(time, "CLOCK_MONOTONIC_RAW", None)  # of Linux and macOS
TASKS = Path("/proc/self/task")


@dataclass(frozen=True)
class Reading:
    """One instant on the engine's clock and on others, in ns, all read within `apart_ns`."""

    engine_ns: int
    raw_ns: int | None
    cpu_ns: int  # of this process
    thread_cpu_ns: int  # of this thread
    apart_ns: int
    threads: "ThreadTime | None" = None  # read just before, in a longer time than apart_ns


@dataclass(frozen=True)
class ThreadTime:
    """What the threads of this process have run, and waited for a CPU, since each began."""

    ran_ns: int
    waited_ns: int


def read_clocks(clock: Clock, tries: int = TRIES) -> Reading:
    """Read all clocks at nearly the same instant: the closest of so many tries."""
    threads = read_threads(system_text(TASKS / i / "schedstat") for i in system_names(TASKS))
    found = [_read(clock) for _ in range(tries)]
    return replace(min(found, key=lambda reading: reading.apart_ns), threads=threads)


def read_threads(schedstats: Iterable[str]) -> ThreadTime | None:
    """The sum over threads, from the texts of their schedstat; None if all are hidden."""
    found = [(int(w[0]), int(w[1])) for text in schedstats if len(w := text.split()) > 1]
    if not found:
        return None
    return ThreadTime(*(sum(column) for column in zip(*found, strict=True)))


def _read(clock: Clock) -> Reading:
    began_ns = clock.now_ns()
    raw_ns = None if RAW is None else time.clock_gettime_ns(RAW)
    cpu_ns, thread_cpu_ns = time.process_time_ns(), time.thread_time_ns()
    return Reading(began_ns, raw_ns, cpu_ns, thread_cpu_ns, clock.now_ns() - began_ns)


def elapsed(begin: Reading, end: Reading) -> dict[str, float | None]:
    """The entries of run.json for a repeat: seconds between two readings on each other clock."""
    raw_ns = None if end.raw_ns is None or begin.raw_ns is None else end.raw_ns - begin.raw_ns
    one, other = begin.threads, end.threads
    ran_ns, waited_ns = (
        (None, None)
        if one is None or other is None
        else (other.ran_ns - one.ran_ns, other.waited_ns - one.waited_ns)
    )
    return {
        "ran_s": None if ran_ns is None else max(0, ran_ns) * NANOSECONDS,
        "waited_s": None if waited_ns is None else max(0, waited_ns) * NANOSECONDS,
        "raw_s": None if raw_ns is None else raw_ns * NANOSECONDS,
        "cpu_s": (end.cpu_ns - begin.cpu_ns) * NANOSECONDS,
        "thread_cpu_s": (end.thread_cpu_ns - begin.thread_cpu_ns) * NANOSECONDS,
        "apart_s": (begin.apart_ns + end.apart_ns) * NANOSECONDS,
    }

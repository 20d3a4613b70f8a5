"""The clock that CPU kernels stamp events with, and how it relates to the host's clock.

Where the processor's cycle counter ticks at one rate on all cores and in all power states, the
clock is that counter: reading it takes some ten nanoseconds. Elsewhere it is the operating system's
monotonic clock.
"""

import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

CLOCK_MONOTONIC = 1  # what perf_counter_ns reads on Linux
TRIES = 50


def has_steady_counter(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the cycle counter is a clock: x86, and steady over cores and power states."""
    if platform.machine() not in ("x86_64", "AMD64") or not cpuinfo.exists():
        return False
    flags = next(
        (line for line in cpuinfo.read_text().splitlines() if line.startswith("flags")), ""
    )
    return {"constant_tsc", "nonstop_tsc"} <= set(flags.split())


@intrinsic
def cycle_counter(typingctx: Any) -> Any:
    """The processor's cycle counter, uint64."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        counter = ir.FunctionType(ir.IntType(64), [])
        read = builder.module.declare_intrinsic("llvm.readcyclecounter", fnty=counter)
        return builder.call(read, [])

    return types.uint64(), code


@intrinsic
def monotonic_ns(typingctx: Any) -> Any:
    """The operating system's monotonic clock in ns, uint64."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word, number = ir.IntType(64), ir.IntType(32)
        timespec = ir.LiteralStructType([word, word])
        kind = ir.FunctionType(number, [number, timespec.as_pointer()])
        function = builder.module.globals.get("clock_gettime") or ir.Function(
            builder.module, kind, "clock_gettime"
        )
        with builder.goto_entry_block():
            place = builder.alloca(timespec)
        builder.call(function, [number(CLOCK_MONOTONIC), place])
        seconds, rest = (builder.extract_value(builder.load(place), i) for i in (0, 1))
        return builder.add(builder.mul(seconds, word(10**9)), rest)

    return types.uint64(), code


NAME = "tsc" if has_steady_counter() else "monotonic"
ticks = cycle_counter if NAME == "tsc" else monotonic_ns


@njit(cache=True)
def now() -> Any:
    """The clock, for Python: an int."""
    return ticks()


@dataclass(frozen=True)
class Sample:
    """One instant on both clocks, and how far apart they may be read."""

    ticks: int
    host_ns: int  # host monotonic clock
    uncertainty_ns: int


def sample() -> Sample:
    """One instant on both clocks: the closest of some tries."""
    tries = []
    for _ in range(TRIES):
        before = perf_counter_ns()
        seen = now()
        after = perf_counter_ns()
        tries.append(Sample(seen, (before + after) // 2, -(-(after - before) // 2)))
    return min(tries, key=lambda one: one.uncertainty_ns)


@njit(cache=True)
def _readings() -> Any:
    seen = np.empty(10_000, np.uint64)
    for place in range(seen.size):
        seen[place] = ticks()
    return seen


def resolution_ticks() -> float:
    """The usual step between two readings, one right after the other: the median."""
    return float(np.median(np.diff(_readings().astype(np.int64))))


def described(samples: list[Sample], start_ns: int) -> dict[str, Any]:
    """The clock as run.json has it; `start_ns` is the run's start on the host's clock."""
    first, last = samples[0], samples[-1] if len(samples) > 1 else sample()
    ns_per_tick = (last.host_ns - first.host_ns) / (last.ticks - first.ticks)
    return {
        "name": NAME,
        "ns_per_tick": ns_per_tick,
        "resolution_ns": resolution_ticks() * ns_per_tick,
        "samples": [asdict(one) | {"host_ns": one.host_ns - start_ns} for one in samples],
    }

"""The clock that CPU kernels stamp events with.

Where the processor's cycle counter ticks at one rate on all cores and in all power states, the
clock is that counter: reading it takes some ten nanoseconds. Elsewhere it is the operating system's
monotonic clock.
"""

import platform
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from kvscope.api.machine import processor
from kvscope_kernels.engine.clock import TickClock

CLOCK_MONOTONIC = 1  # what perf_counter_ns reads on Linux


def has_steady_counter(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """True if the cycle counter is a clock: x86, and steady over cores and power states."""
    flags = processor(cpuinfo).get("flags", "").split()
    return platform.machine() in ("x86_64", "AMD64") and {"constant_tsc", "nonstop_tsc"} <= {*flags}


@intrinsic
def cycle_counter(typingctx: Any) -> Any:
    """The processor's cycle counter, uint64, once all that comes before it has been done.

    Without the fence a processor reads its counter before the loads of an event have ended, and
    their time would lie between the events.
    """

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wait = ir.FunctionType(ir.VoidType(), [])
        builder.call(builder.module.declare_intrinsic("llvm.x86.sse2.lfence", fnty=wait), [])
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
def read_ticks() -> Any:
    """The clock, for Python: an int."""
    return ticks()


@njit(cache=True)
def _readings() -> Any:
    seen = np.empty(10_000, np.uint64)
    for place in range(seen.size):
        seen[place] = ticks()
    return seen


class CpuClock(TickClock):
    """`ticks`, as the host reads and calibrates it."""

    name = NAME

    def read(self) -> Any:
        """The clock now: an int."""
        return read_ticks()

    def resolution_ns(self, ns_per_tick: float) -> float:
        """The usual step between two readings, one right after the other: the median."""
        return float(np.median(np.diff(_readings().astype(np.int64)))) * ns_per_tick

"""The CPU kernels run by Python itself, from their own source, so that faults can be put in.

Compiling each faulty kernel would take seconds; the events of a small batch take milliseconds.
"""

import struct
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Any

import numpy as np

from kvscope_kernels.engine.cpu import kernels as compiled

SOURCE = Path(compiled.__file__).read_text(encoding="utf-8")
Fault = tuple[str, str]


def ticks() -> np.uint64:
    return np.uint64(perf_counter_ns())


def njit(*_given: Any, **_options: Any) -> Callable[[Any], Any]:
    return lambda function: function


def intrinsic(function: Any) -> Any:
    return {"as_float": as_float, "to_float32": np.float32}[function.__name__]


def as_float(bits: np.uint32) -> np.float32:
    return np.float32(struct.unpack("<f", struct.pack("<I", int(bits)))[0])


def kernels(*faults: Fault) -> Any:
    """The kernels with parts of their source replaced; each part must be there."""
    source = SOURCE
    for old, new in faults:
        assert old in source, f"the kernels no longer say {old!r}"
        source = source.replace(old, new)
    space: dict[str, Any] = {
        "njit": njit,
        "intrinsic": intrinsic,
        "prange": range,
        "get_thread_id": lambda: 0,
        "ticks": ticks,
    }
    replaced = ("from numba", "from kvscope_kernels.engine.cpu.clock")
    lines = [line for line in source.splitlines() if not line.startswith(replaced)]
    exec(compile("\n".join(lines), "kernels", "exec"), space)
    return SimpleNamespace(**space)

"""From the clock that kernels read to nanoseconds since the run's start, host monotonic clock.

`docs/TRACE_SPEC.md` has the model. Ticks may be as large as 2^63, where a double resolves only
hundreds of them: origins are subtracted as integers before anything is multiplied.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.collect.arrays import Int64s
from kvscope.errors import BadInput


@dataclass(frozen=True)
class Clock:
    """Host time is piecewise linear in ticks, through readings of both clocks taken together.

    `ticks` (relative to `origin`) and `host_ns` are those readings in order, `slopes` the ns per
    tick between one and the next; beyond the ends the nearest slope goes on. `uncertainty_ns` is
    the largest of the readings': how far apart the two clocks may have been read.
    """

    origin: int
    ticks: Int64s
    host_ns: Int64s
    slopes: npt.NDArray[np.float64]
    uncertainty_ns: int
    resolution_ns: float = 0.0  # the step between two readings; 0 if nobody looked

    @classmethod
    def of_run(cls, facts: dict[str, Any], run_json: Path) -> "Clock":
        """The clock of a traced run, from its run.json; BadInput if that has none."""
        try:
            clock = facts["tracing"]["clock"]
            readings = {int(sample["ticks"]): int(sample["host_ns"]) for sample in clock["samples"]}
            uncertainty = max(int(sample["uncertainty_ns"]) for sample in clock["samples"])
            ns_per_tick = float(clock["ns_per_tick"])
            resolution_ns = float(clock.get("resolution_ns", 0))
        except (KeyError, TypeError, ValueError):
            raise BadInput(
                f"{run_json}: tracing.clock does not hold ns_per_tick and samples of ticks, "
                "host_ns and uncertainty_ns, so the times of KV events cannot be told"
            ) from None
        origin = min(readings)
        ticks = np.array([tick - origin for tick in sorted(readings)], np.int64)
        host_ns = np.array([readings[tick] for tick in sorted(readings)], np.int64)
        slopes = np.diff(host_ns) / np.diff(ticks) if len(ticks) > 1 else np.array([ns_per_tick])
        return cls(origin, ticks, host_ns, slopes, uncertainty, resolution_ns)

    def ns(self, ticks: Int64s, since: int = 0) -> Int64s:
        """Host ns of instants given in ticks since the instant `since`."""
        relative = ticks + (since - self.origin)
        if not len(relative):
            return relative
        piece = self._piece(relative)
        into = (relative - self.ticks[piece]) * self.slopes[piece]
        return self.host_ns[piece] + np.rint(into).astype(np.int64)

    def _piece(self, relative: Int64s) -> npt.NDArray[np.intp] | np.intp:
        """The piece each instant lies in; as one number if all share it, as they mostly do."""
        ends = self.ticks[1:-1]
        first = np.searchsorted(ends, relative.min(), side="right")
        last = np.searchsorted(ends, relative.max(), side="right")
        return first if first == last else np.searchsorted(ends, relative, side="right")


def along_segments(values: Int64s, segment: Int64s, pairs: dict[str, Int64s]) -> Int64s:
    """A GPU's `clock64` readings as ns of its global timer, by each thread block's own line.

    An SM's clock and the timer are read together at a thread block's start and end; `pairs` has
    start_clock, end_clock, start_timer and end_timer of each segment, and `segment` says which
    one each value lies in. What a thread block reads between its ends stays between them.
    """
    clocks = np.maximum(pairs["end_clock"] - pairs["start_clock"], 1)
    slopes = (pairs["end_timer"] - pairs["start_timer"]) / clocks
    into = (values - pairs["start_clock"][segment]) * slopes[segment]
    ns: Int64s = pairs["start_timer"][segment] + np.rint(into).astype(np.int64)
    return ns

"""Offset of the profiler's clock from the host's.

The host records when each forward pass was scheduled; the NVTX range of the pass is pushed right
then. Their differences scatter by the microseconds between the two readings, so that the median
over all passes gives the offset, and the residuals are its error.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from kvscope.base.arraytypes import Floats, Int64s
from kvscope.collect.host_times import instants_ns
from kvscope.tables.run_data import RunData

DRIFT_WORTH_A_WARNING_NS = 100_000
_THIRDS = 3
_LEAST_OF_THIRD = 3  # passes, so that one late reading is not the median


@dataclass(frozen=True)
class Alignment:
    """host time = profiler time + `offset_ns`, both in ns, the former since the run's start.

    `method` is 'forward passes', or 'utc' if no pass could be matched (both clocks' UTC readings
    are trusted instead). Residuals are what is left of the differences once the offset is taken
    away, as absolute values; `drift_ns` is how far the differences moved from the first to the
    last third of the passes, and `drift_ppm` the same per time; both are null of fewer than nine
    passes, of which a late reading would look like a drift.
    """

    method: str
    offset_ns: int
    passes: int
    residual_median_ns: float | None = None
    residual_p99_ns: float | None = None
    residual_max_ns: float | None = None
    drift_ns: float | None = None
    drift_ppm: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)

    def warnings(self) -> list[str]:
        """Sentences on why the alignment is doubtful."""
        if self.method == "utc":
            return [
                "No forward pass was found among the NVTX ranges; the clocks were aligned by "
                "their UTC readings, with unknown residual."
            ]
        if self.drift_ns is not None and abs(self.drift_ns) > DRIFT_WORTH_A_WARNING_NS:
            return [f"The clocks drifted apart by {self.drift_ns / 1e3:.0f} µs during the run."]
        return []


def align(run: RunData, passes: pd.DataFrame, capture_start_utc_ns: int | None) -> Alignment | None:
    """Align by the forward passes, or else by UTC; None if there is neither.

    `passes` has repeat, step and start_ns (profiler's clock) of the NVTX ranges of the passes.
    """
    pairs = _match(run, passes)
    if len(pairs):
        return _from_pairs(pairs["profiler_ns"].to_numpy(), pairs["host_ns"].to_numpy())
    run_start_utc_ns = run.record.clock.run_start_utc_ns
    if capture_start_utc_ns is None or run_start_utc_ns is None:
        return None
    return Alignment("utc", capture_start_utc_ns - run_start_utc_ns, passes=0)


def _match(run: RunData, passes: pd.DataFrame) -> pd.DataFrame:
    """One row a pass that both have recorded, in order of time."""
    steps = run.steps.dropna(subset=["schedule_s"]).drop_duplicates(["repeat", "step"])
    scheduled = steps[["repeat", "step"]].assign(
        host_ns=instants_ns(run, steps["repeat"], steps["start_s"] + steps["schedule_s"])
    )
    ranges = passes.sort_values("start_ns").drop_duplicates(["repeat", "step"])
    ranges = ranges.rename(columns={"start_ns": "profiler_ns"})
    pairs = scheduled.merge(ranges, on=["repeat", "step"], validate="one_to_one")
    return pairs.sort_values("profiler_ns")


def _from_pairs(profiler: Int64s, host: Int64s) -> Alignment:
    differences = host - profiler
    offset = int(np.median(differences))
    residuals = (differences - offset).astype(np.float64)
    size = np.abs(residuals)
    drift, elapsed = _drift(profiler, residuals)
    return Alignment(
        method="forward passes",
        offset_ns=offset,
        passes=len(profiler),
        residual_median_ns=float(np.median(size)),
        residual_p99_ns=float(np.percentile(size, 99)),
        residual_max_ns=float(size.max()),
        drift_ns=drift,
        drift_ppm=drift / elapsed * 1e6 if drift is not None and elapsed else None,
    )


def _drift(time: Int64s, residuals: Floats) -> tuple[float | None, float]:
    """Movement of the residuals between the first and last third, and the time between these.

    Medians of thirds, so that a few late readings do not look like a drift.
    """
    third = len(time) // _THIRDS
    if third < _LEAST_OF_THIRD:
        return None, 0.0
    first, last = slice(0, third), slice(-third, None)
    moved = float(np.median(residuals[last]) - np.median(residuals[first]))
    return moved, float(np.median(time[last]) - np.median(time[first]))

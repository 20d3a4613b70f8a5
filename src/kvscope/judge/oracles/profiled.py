"""The oracle of a profiled run: the profiler, with a clock of its own, saw the same passes."""

import numpy as np
import pandas as pd

from kvscope.collect.nsys.passes import forward_passes
from kvscope.collect.timeline.alignment import align
from kvscope.judge.oracles.run_tables import NANOSECONDS, OF_PASS, RunTables, bad_rows, combine
from kvscope.tables.oracle import NONE, Violations
from kvscope.tables.runfile import NSYS_EXPORT

DRIFT_PPM, DRIFT_NS = 1_000.0, 1_000_000
"""Allowed drift of the two clocks: of their rates, and a constant for short runs."""
APART_SHARE, APART_S = 0.10, 50e-6
"""Allowed difference of the median pass: a share, and the time of the profiler's own calls."""


def is_profiled(run: RunTables) -> bool:
    """Whether the run has an export of the profiler."""
    return NSYS_EXPORT in run.record.files


def ranges_differ(run: RunTables) -> Violations | None:
    """The forward part of a pass is as long as its range in the profiler's export.

    The time from pass to pass also equals that of the ranges. The profiler has its own clock.
    Medians are compared, because a thread may lose its CPU between two readings.
    """
    ranges = forward_passes(run.records.directory / NSYS_EXPORT)
    pairs = run.steps.merge(ranges, on=OF_PASS)
    if pairs.empty:
        return None
    pairs["range_s"] = (pairs["end_ns"] - pairs["start_ns"]).astype(float) * NANOSECONDS
    pairs["apart_s"] = (pairs["range_s"] - pairs["forward_s"]).abs()
    usual = pairs.groupby("repeat")[["range_s", "forward_s", "apart_s"]].median().reset_index()
    off = usual["apart_s"] > APART_SHARE * usual["range_s"] + APART_S
    words = "the median pass takes {forward_s:.6f} s, {range_s:.6f} s by the profiler"
    return combine(bad_rows(usual, off, lambda r: words.format(**r)), _drifting(run, ranges))


def _drifting(run: RunTables, ranges: pd.DataFrame) -> Violations:
    clock = align(run.records, ranges, None)
    if clock is None or clock.drift_ns is None or not clock.drift_ppm:
        return NONE
    elapsed_ns = np.abs(clock.drift_ns / clock.drift_ppm * 1e6)
    if np.abs(clock.drift_ns) <= DRIFT_NS + DRIFT_PPM * 1e-6 * elapsed_ns:
        return NONE
    return Violations(1, f"the profiler's clock drifts by {clock.drift_ppm:.0f} ppm from the run's")

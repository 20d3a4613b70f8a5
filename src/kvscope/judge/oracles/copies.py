"""Oracles of copies between the KV cache and the host: complete, their bytes and times."""

import math

import numpy as np
import pandas as pd

from kvscope.judge.oracles.run_tables import (
    OF_PASS,
    TOLERANCE_S,
    RunTables,
    bad_rows,
    combine,
    previous,
)
from kvscope.judge.oracles.waiting import without_cpu_s
from kvscope.tables.copies import FASTEST_BYTES_PER_S, INPUTS, copies_of
from kvscope.tables.oracle import NONE, Violations

STOPWATCH_S, STOPWATCH_SHARE = 20e-6, 0.10
"""Allowed difference between the inner and the outer timing of one copy."""
ENOUGH, FASTER = 5, 3.0
"""Fewest copies of a kind that are compared, and the allowed ratio of their fastest to the
warm-up's.
"""
MOST = 0.5
"""Share of the copies of one direction that must exceed it: an interrupt may hit a single copy.

And together they must exceed it by more than the engine waited for a CPU.
"""


def copy_outside_pass(run: RunTables) -> Violations:
    """Copies run one after another within the forward part of their pass."""
    rows, steps = _in_order(run), run.steps
    pass_rows, end_s = run.pass_of(rows), rows["end_s"].to_numpy()
    begin = (steps["start_s"] + steps["schedule_s"]).to_numpy()[pass_rows]
    outside = rows["start_s"] < begin - TOLERANCE_S
    outside |= end_s > begin + steps["forward_s"].to_numpy()[pass_rows] + TOLERANCE_S
    overlap = rows["start_s"] < previous(end_s, pass_rows, 0.0) - TOLERANCE_S
    return combine(
        bad_rows(rows, outside, lambda _: "the copy is outside the forward part of its pass"),
        bad_rows(rows, overlap, lambda _: "the copy overlaps the previous copy"),
    )


def copy_time_wrong(run: RunTables) -> Violations:
    """The two timings of a copy agree, and imply no impossible bandwidth.

    They may differ by the time for which the engine waited for a CPU between their readings. Where
    copies are asynchronous, as on a GPU, only the bandwidth is checked: the pass times the launch,
    not the copy. Copies of activations, and only these, have a time for rebuilding.
    """
    rows = _in_order(run)
    elapsed = rows["end_s"] - rows["start_s"]
    took = rows["copy_s"] + rows["rebuild_s"].astype(float).fillna(0)
    impossible = rows["copy_s"] * FASTEST_BYTES_PER_S < rows["bytes"]
    rows = rows.assign(took=took, seen=elapsed)
    fast = bad_rows(rows, impossible, lambda r: f"{r['bytes']} bytes in {r['took']:.9f} s")
    fast += bad_rows(
        rows,
        rows["rebuild_s"].notna() != (rows["kind"] == INPUTS),
        lambda r: f"rebuild_s is {r['rebuild_s']} of a copy of {r['kind']}",
    )
    if not run.engine.copies_awaited:
        return fast
    longer = rows["took"] > rows["seen"] + TOLERANCE_S
    words = "the copy took {0:.6f} s, {1:.6f} s by the clock of its pass"
    beyond = rows["seen"] - rows["took"] - STOPWATCH_SHARE * rows["seen"] - STOPWATCH_S
    lost = beyond.clip(lower=0).groupby(rows["repeat"]).sum()
    shorter = (beyond > 0) & (rows["repeat"].map(lost) > rows["repeat"].map(without_cpu_s(run)))
    differ = longer | (shorter & (shorter.groupby(rows["direction"]).transform("mean") > MOST))
    return combine(fast, bad_rows(rows, differ, lambda r: words.format(r["took"], r["seen"])))


def copy_rate_wrong(run: RunTables) -> Violations:
    """The fastest copy of a kind is at most three times as fast as the fastest of the warm-up.

    The warm-up serves the same requests. Copies that the host waits for are slow if it lacks a
    CPU; their CPU time is used instead. Kinds with fewer than five copies are not compared.
    """
    warm = run.record.warmup.copies
    wrong = [
        f"{kind}: {rate / 1e9:.3f} GB/s, {usual.fastest_bytes_per_s / 1e9:.3f} in warm-up"
        for kind, stats in copies_of(run.records.copies).items()
        if (usual := warm.get(kind)) and min(stats["count"], usual.count) >= ENOUGH
        if (rate := stats["fastest_bytes_per_s"]) > FASTER * usual.fastest_bytes_per_s
    ]
    return Violations(len(wrong), wrong[0]) if wrong else NONE


def saves_wrong(run: RunTables) -> Violations:
    """Activations are saved at a possible bandwidth, one copy after another, around their pass.

    They are copied between the start of their pass and the start of the next pass but one. Where
    the host waits for them, they take no longer than the pass.
    """
    if run.records.saved.empty:
        return NONE
    starts = run.steps.groupby("repeat")["start_s"]
    steps = run.steps.assign(until_s=starts.shift(-2, fill_value=math.inf))
    rows = run.records.saved.merge(
        steps[[*OF_PASS, "start_s", "until_s", "duration_s"]], on=OF_PASS, suffixes=("", "_of_pass")
    ).sort_values(["repeat", "start_s"], ignore_index=True)
    fast = rows["copy_s"] * FASTEST_BYTES_PER_S < rows["bytes"]
    if run.engine.copies_awaited:
        fast |= rows["copy_s"] > rows["duration_s"] + TOLERANCE_S
    before_s = rows.groupby("repeat")["end_s"].shift(fill_value=0.0)
    apart = rows["start_s"] < np.maximum(before_s, rows["start_s_of_pass"]) - TOLERANCE_S
    apart |= (rows["end_s"] < rows["start_s"]) | (rows["end_s"] > rows["until_s"] + TOLERANCE_S)
    return combine(
        bad_rows(rows, fast, lambda r: f"{r['bytes']} bytes saved in {r['copy_s']} s"),
        bad_rows(rows, apart, lambda _: "activations are saved outside their turn"),
    )


def _in_order(run: RunTables) -> pd.DataFrame:
    """The copies of preempted requests in order of time."""
    return run.records.moves.sort_values([*OF_PASS, "start_s"], ignore_index=True)

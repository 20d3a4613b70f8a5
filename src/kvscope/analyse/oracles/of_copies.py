"""Oracles of copies between the cache and the host pool: their bytes, and their times."""

import pandas as pd

from kvscope.actions import copies_blocks
from kvscope.analyse.oracles.recorded_run import (
    OF_PASS,
    TOLERANCE_S,
    RecordedRun,
    blocks_of,
    both,
    where,
)
from kvscope.oracle import Violations

FASTEST_BYTES_PER_S = 2e12
"""No link between a host and its device, and no host's memory, copies as fast as this."""
STOPWATCH_S, STOPWATCH_SHARE = 20e-6, 0.10
"""What starting and stopping the inner of two stopwatches takes beside a copy, if nothing comes
between: most copies are not interrupted there, also on a busy machine."""
MOST = 0.5
COPIED = {"preempt": "swap_out_s", "resume": "swap_in_s"}


def bytes_wrong(run: RecordedRun) -> Violations:
    """A swap copies the blocks of the tokens that are kept, and recomputation copies nothing."""
    rows = run.preemptions
    kept = blocks_of(rows["tokens"], run.records.block_size).where(copies_blocks(rows["policy"]), 0)
    rows = rows.assign(expected=kept * run.engine["block_bytes"])
    return where(
        rows,
        rows["bytes"] != rows["expected"],
        lambda r: f"{r['bytes']} bytes copied, its blocks have {r['expected']}",
    )


def copy_missing(run: RecordedRun) -> Violations:
    """A swap was not refused, and has its copy's times: out at a preemption, in at a resumption."""
    rows = run.preemptions
    swaps = copies_blocks(rows["policy"])
    wrong = swaps & rows["refused"].astype(bool)
    for event, column in COPIED.items():
        wrong |= rows[column].notna() != (swaps & (rows["event"] == event))
    for column in ("copy_start_s", "copy_end_s"):
        wrong |= rows[column].notna() != swaps
    return where(rows, wrong, lambda r: f"times of a copy do not suit a {r['event']}")


def copy_outside_pass(run: RecordedRun) -> Violations:
    """A copy is made within the forward part of its pass, one copy after the other."""
    rows = _copies(run)
    begin = rows["start_s"] + rows["schedule_s"]
    outside = rows["copy_start_s"] < begin - TOLERANCE_S
    outside |= rows["copy_end_s"] > begin + rows["forward_s"] + TOLERANCE_S
    before = rows.groupby(OF_PASS)["copy_end_s"].shift(fill_value=0.0)
    overlap = rows["copy_start_s"] < before - TOLERANCE_S
    return both(
        where(rows, outside, lambda _: "copied outside of its pass's forward part"),
        where(rows, overlap, lambda _: "copied while another copy was"),
    )


def copy_time_wrong(run: RecordedRun) -> Violations:
    """A copy takes the time that its pass saw it take, and is no faster than memory.

    Where copies are not awaited, as on a GPU, the pass sees only that they were launched.
    """
    rows = _copies(run)
    took = rows["swap_out_s"].fillna(rows["swap_in_s"])
    seen = rows["copy_end_s"] - rows["copy_start_s"]
    rows = rows.assign(took=took, seen=seen, wrong=took * FASTEST_BYTES_PER_S < rows["bytes"])
    fast = where(rows, rows["wrong"], lambda r: f"{r['bytes']} bytes in {r['took']:.9f} s")
    if not run.engine.get("copies_awaited"):
        return fast
    longer = rows["took"] > rows["seen"] + TOLERANCE_S
    shorter = rows["seen"] - rows["took"] > STOPWATCH_SHARE * rows["seen"] + STOPWATCH_S
    words = "took {0:.6f} s, {1:.6f} s by the clock of its pass"
    differ = longer | (shorter & (shorter.groupby(rows["event"]).transform("mean") > MOST))
    return both(fast, where(rows, differ, lambda r: words.format(r["took"], r["seen"])))


def _copies(run: RecordedRun) -> pd.DataFrame:
    """The copies in order of time, with their pass."""
    rows = run.preemptions[run.preemptions["copy_start_s"].notna()]
    rows = rows.merge(run.steps[[*OF_PASS, "start_s", "schedule_s", "forward_s"]], on=OF_PASS)
    return rows.sort_values([*OF_PASS, "copy_start_s"], ignore_index=True)

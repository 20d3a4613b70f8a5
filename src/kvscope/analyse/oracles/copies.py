"""Oracles of copies between the KV cache and the host pool: bytes and times."""

import numpy as np
import pandas as pd

from kvscope.actions import copies_blocks, keeps_tokens, rebuilds_blocks
from kvscope.analyse.oracles.run_tables import (
    OF_PASS,
    TOLERANCE_S,
    RunTables,
    bad_rows,
    blocks_of,
    combine,
)
from kvscope.oracle import Violations

FASTEST_BYTES_PER_S = 2e12
"""Upper bound: no host link and no host memory reaches this bandwidth."""
STOPWATCH_S, STOPWATCH_SHARE = 20e-6, 0.10
"""Allowed difference between the inner and the outer timing of one copy."""
MOST = 0.5
"""Share of the copies of one direction that must exceed it: an interrupt may hit a single copy."""


def bytes_wrong(run: RunTables) -> Violations:
    """A swap copies all blocks of the tokens it keeps, a rebuilding their activations, once.

    Recompute copies nothing.
    """
    rows = run.preemptions
    back = rebuilds_blocks(rows["policy"]) & (rows["event"] == "resume")
    each = back * run.engine.get("activation_block_bytes", 0)
    each += copies_blocks(rows["policy"]) * run.engine["block_bytes"]
    rows = rows.assign(expected=blocks_of(rows["tokens"], run.records.block_size) * each)
    return bad_rows(
        rows,
        rows["bytes"] != rows["expected"],
        lambda r: f"{r['bytes']} bytes copied, expected {r['expected']}",
    )


def copy_missing(run: RunTables) -> Violations:
    """What was kept was not refused, and has its times: out at preemption, in at resumption.

    A rebuilding copies nothing out, and has the time of the rebuilding itself.
    """
    rows = run.preemptions
    swaps, resumed = copies_blocks(rows["policy"]), rows["event"] == "resume"
    rebuilt = rebuilds_blocks(rows["policy"]) & resumed
    wrong = keeps_tokens(rows["policy"]) & rows["refused"].astype(bool)
    due = {
        "swap_out_s": swaps & ~resumed,
        "swap_in_s": swaps & resumed | rebuilt,
        "rebuild_s": rebuilt,
        "copy_start_s": swaps | rebuilt,
        "copy_end_s": swaps | rebuilt,
    }
    for column, expected in due.items():
        wrong |= rows[column].notna() != expected
    return bad_rows(
        rows, wrong, lambda r: f"copy times do not match the policy of this {r['event']}"
    )


def copy_outside_pass(run: RunTables) -> Violations:
    """Copies run one after another within the forward part of their pass."""
    rows = _copies(run)
    begin = rows["start_s"] + rows["schedule_s"]
    outside = rows["copy_start_s"] < begin - TOLERANCE_S
    outside |= rows["copy_end_s"] > begin + rows["forward_s"] + TOLERANCE_S
    before = rows.groupby(OF_PASS)["copy_end_s"].shift(fill_value=0.0)
    overlap = rows["copy_start_s"] < before - TOLERANCE_S
    return combine(
        bad_rows(rows, outside, lambda _: "the copy is outside the forward part of its pass"),
        bad_rows(rows, overlap, lambda _: "the copy overlaps the previous copy"),
    )


def copy_time_wrong(run: RunTables) -> Violations:
    """The two timings of a copy agree, and imply no impossible bandwidth.

    Where copies are asynchronous, as on a GPU, only the bandwidth is checked: the pass times the
    launch, not the copy.
    """
    rows = _copies(run)
    copied = rows["swap_out_s"].fillna(rows["swap_in_s"])
    seen = rows["copy_end_s"] - rows["copy_start_s"]
    took = copied + rows["rebuild_s"].astype(float).fillna(0)
    rows = rows.assign(took=took, seen=seen, wrong=copied * FASTEST_BYTES_PER_S < rows["bytes"])
    fast = bad_rows(rows, rows["wrong"], lambda r: f"{r['bytes']} bytes in {r['took']:.9f} s")
    if not run.engine.get("copies_awaited"):
        return fast
    longer = rows["took"] > rows["seen"] + TOLERANCE_S
    shorter = rows["seen"] - rows["took"] > STOPWATCH_SHARE * rows["seen"] + STOPWATCH_S
    words = "the copy took {0:.6f} s, {1:.6f} s by the clock of its pass"
    differ = longer | (shorter & (shorter.groupby(rows["event"]).transform("mean") > MOST))
    return combine(fast, bad_rows(rows, differ, lambda r: words.format(r["took"], r["seen"])))


def saves_wrong(run: RunTables) -> Violations:
    """A pass writes the activations of its own tokens through, at a possible bandwidth.

    Those of all its tokens, where there is room for all; none, where there is no room for any.
    """
    steps = run.steps
    has_pool = bool(run.engine.get("activation_blocks_total"))
    block_bytes = run.engine["activation_block_bytes"] if has_pool else 0
    most = steps["scheduled_tokens"].astype(np.int64) * block_bytes // run.records.block_size
    saved, took = steps["saved_bytes"], steps["save_s"].astype(float)
    wrong = (saved > most) | ((saved < most) & ~run.lacks_room_for_activations)
    untimed = took.notna() != (saved > 0)
    fast = took * FASTEST_BYTES_PER_S < saved
    return combine(
        bad_rows(
            steps.assign(most=most),
            wrong,
            lambda r: f"{r['saved_bytes']} bytes of activations saved, expected {r['most']}",
        ),
        bad_rows(
            steps, untimed | fast, lambda r: f"{r['saved_bytes']} bytes saved in {r['save_s']} s"
        ),
    )


def _copies(run: RunTables) -> pd.DataFrame:
    """The rows of `preemptions` with a copy, in order of time, with the times of their pass."""
    rows = run.preemptions[run.preemptions["copy_start_s"].notna()]
    rows = rows.merge(run.steps[[*OF_PASS, "start_s", "schedule_s", "forward_s"]], on=OF_PASS)
    return rows.sort_values([*OF_PASS, "copy_start_s"], ignore_index=True)

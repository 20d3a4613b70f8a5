"""Oracles of copies between the KV cache and the host: complete, their bytes and times."""

import numpy as np
import pandas as pd

from kvscope.actions import ACTIVATION, copies_blocks, keeps_tokens, rebuilds_blocks
from kvscope.analyse.oracles.held import held_blocks, kept_blocks
from kvscope.analyse.oracles.run_tables import (
    OF_PASS,
    OF_REQUEST,
    TOLERANCE_S,
    RunTables,
    bad_rows,
    blocks_of,
    combine,
    counts_of,
)
from kvscope.analyse.oracles.waiting import without_cpu_s
from kvscope.copies import ACTIVATIONS, IN, KV, OUT, copies_of
from kvscope.oracle import NONE, Violations

OF_COPY = [*OF_REQUEST, "step", "direction"]
"""The key of a preempted request's copy."""
FASTEST_BYTES_PER_S = 2e12
"""Upper bound: no host link and no host memory reaches this bandwidth."""
STOPWATCH_S, STOPWATCH_SHARE = 20e-6, 0.10
"""Allowed difference between the inner and the outer timing of one copy."""
ENOUGH, FASTER = 5, 3.0
"""Copies of a kind whose fastest can be compared, and by how much it may exceed the warm-up's."""
MOST = 0.5
"""Share of the copies of one direction that must exceed it: an interrupt may hit a single copy.

And together they must exceed it by more than the engine waited for a CPU.
"""


def bytes_wrong(run: RunTables) -> Violations:
    """A copy of a preempted request has the blocks of the tokens that it keeps, once.

    Neither blocks that other requests hold nor blocks found in the prefix cache are copied.
    """
    rows = _due(run).merge(run.records.moves, on=[*OF_COPY, "kind"], suffixes=("_due", ""))
    block_bytes = {
        KV: run.engine.block_bytes or 0,
        ACTIVATIONS: run.engine.activation_block_bytes,
    }
    rows["expected"] = rows["blocks_due"] * rows["kind"].map(block_bytes)
    return bad_rows(
        rows,
        (rows["bytes"] != rows["expected"]) | (rows["blocks"] != rows["blocks_due"]),
        lambda r: f"{r['bytes']} bytes copied, expected {r['expected']}",
    )


def copy_missing(run: RunTables) -> Violations:
    """What was kept was not refused, and is copied: out at preemption, in at resumption.

    A rebuilding copies nothing out, and has the time of the rebuilding itself. Nothing else is
    copied.
    """
    lost, moves = run.victims, run.records.moves
    kept = keeps_tokens(lost["policy"]) & lost["refused"].astype(bool)
    due = _due(run).merge(moves, on=[*OF_COPY, "kind"], how="outer", indicator="found")
    words = {"left_only": "has no copy", "right_only": "was copied, though nothing was kept"}
    rebuilt = moves["kind"] == ACTIVATIONS
    return combine(
        bad_rows(lost, kept, lambda _: "was kept, though it was refused"),
        bad_rows(due, due["found"] != "both", lambda r: f"{r['direction']}: {words[r['found']]}"),
        bad_rows(
            moves,
            moves["rebuild_s"].notna() != rebuilt,
            lambda r: f"rebuild_s is {r['rebuild_s']} of a copy of {r['kind']}",
        ),
    )


def _due(run: RunTables) -> pd.DataFrame:
    """The copies that preemptions and resumptions need: of which pass, request, kind, blocks.

    Blocks that other requests hold are not copied out, and those found in the prefix cache not in.
    """
    rows, size = run.records.preemptions, run.records.block_size
    back, rebuilds = rows["event"] == "resume", rebuilds_blocks(rows["policy"])
    moves = copies_blocks(rows["policy"]) | (rebuilds & back)
    context = rows[[*OF_REQUEST, "step"]].merge(
        run.batch[[*OF_REQUEST, "step", "context_tokens"]], how="left"
    )["context_tokens"]
    context = counts_of(context).set_axis(rows.index)
    into = held_blocks(run, context, context) - counts_of(rows["hit_tokens"]) // size
    out = kept_blocks(run, rows) - counts_of(rows["shared_blocks"])
    blocks = into.where(back, out)
    due = rows[moves & (blocks > 0)]
    return pd.DataFrame(
        {
            **{name: due[name] for name in (*OF_REQUEST, "step")},
            "direction": np.where(back[due.index], IN, OUT),
            "kind": np.where(rebuilds[due.index], ACTIVATIONS, KV),
            "blocks": blocks[due.index],
        }
    )


def copy_outside_pass(run: RunTables) -> Violations:
    """Copies run one after another within the forward part of their pass."""
    rows = _of_passes(run)
    begin = rows["pass_s"] + rows["schedule_s"]
    outside = rows["start_s"] < begin - TOLERANCE_S
    outside |= rows["end_s"] > begin + rows["forward_s"] + TOLERANCE_S
    before = rows.groupby(OF_PASS)["end_s"].shift(fill_value=0.0)
    overlap = rows["start_s"] < before - TOLERANCE_S
    return combine(
        bad_rows(rows, outside, lambda _: "the copy is outside the forward part of its pass"),
        bad_rows(rows, overlap, lambda _: "the copy overlaps the previous copy"),
    )


def copy_time_wrong(run: RunTables) -> Violations:
    """The two timings of a copy agree, and imply no impossible bandwidth.

    They may differ by what the engine waited for a CPU between their readings.
    Where copies are asynchronous, as on a GPU, only the bandwidth is checked: the pass times the
    launch, not the copy.
    """
    rows = _of_passes(run)
    seen = rows["end_s"] - rows["start_s"]
    took = rows["copy_s"] + rows["rebuild_s"].astype(float).fillna(0)
    impossible = rows["copy_s"] * FASTEST_BYTES_PER_S < rows["bytes"]
    rows = rows.assign(took=took, seen=seen)
    fast = bad_rows(rows, impossible, lambda r: f"{r['bytes']} bytes in {r['took']:.9f} s")
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

    The warm-up serves the same requests. Copies that the host waits for are slow where it lacks a
    CPU, and have their CPU time instead. Kinds with fewer than five copies are not compared.
    """
    warm = run.record.warmup.copies
    wrong = [
        f"{kind}: {rate / 1e9:.3f} GB/s, {usual.fastest_bytes_per_s / 1e9:.3f} in warm-up"
        for kind, found in copies_of(run.records.transfers).items()
        if (usual := warm.get(kind)) and min(found["count"], usual.count) >= ENOUGH
        if (rate := found["fastest_bytes_per_s"]) > FASTER * usual.fastest_bytes_per_s
    ]
    return Violations(len(wrong), wrong[0]) if wrong else NONE


def saves_wrong(run: RunTables) -> Violations:
    """A pass writes through the activations of some of its requests, at a possible bandwidth.

    Those of all tokens of a request, from its start on, until there is no room for them, but not of
    one that begins with tokens that it finds in the prefix cache. With the policy `activation`
    those of every request for which there is room. Where the host waits for them, they take no
    longer than the pass.
    """
    rows, steps = run.batch, run.steps
    token_bytes = run.engine.activation_block_bytes // run.records.block_size
    due = rows.groupby(OF_PASS)["saved_tokens"].sum() * token_bytes
    made = run.records.saved.groupby(OF_PASS).agg(saved=("bytes", "sum"), took=("copy_s", "sum"))
    steps = steps.join(due.rename("due"), on=OF_PASS).join(made, on=OF_PASS)
    steps = steps.fillna({"due": 0, "saved": 0, "took": 0.0})
    saved, took = steps["saved"], steps["took"]
    untimed = (took > 0) != (saved > 0)
    if run.engine.copies_awaited:
        untimed |= took > steps["duration_s"] + TOLERANCE_S
    fast = took * FASTEST_BYTES_PER_S < saved
    kept, begins = rows["saved_tokens"] > 0, rows["context_tokens"] == 0
    partly = kept & (rows["saved_tokens"] != rows["scheduled_tokens"])
    late = kept & ~begins & ~rows["previous_saved"]
    return combine(
        bad_rows(
            steps,
            saved != steps["due"],
            lambda r: f"{r['saved']:.0f} bytes of activations saved, expected {r['due']:.0f}",
        ),
        bad_rows(steps, untimed | fast, lambda r: f"{r['saved']:.0f} bytes saved in {r['took']} s"),
        bad_rows(rows, partly | late, lambda r: f"saved {r['saved_tokens']} tokens out of turn"),
        _unsaved(run),
    )


def _unsaved(run: RunTables) -> Violations:
    """Passes that do not save a request although there is room beside those that they save."""
    rows, total = run.batch, run.engine.activation_blocks_total
    begins = rows["context_tokens"] == 0
    due = rows["previous_saved"] & ~begins
    if run.section("overflow").get("name") == ACTIVATION.name:
        due |= begins
    lost = rows[due & (rows["saved_tokens"] == 0)]
    needed = blocks_of(lost["end_tokens"], run.records.block_size)
    wanted = needed.groupby([lost[key] for key in OF_PASS]).sum().rename("wanted")
    steps = run.steps.assign(kept=run.activation_blocks).join(wanted, on=OF_PASS)
    return bad_rows(
        steps,
        steps["kept"] + steps["wanted"] <= total,
        lambda r: f"{r['wanted']:.0f} blocks of activations not saved, {total - r['kept']} free",
    )


def _of_passes(run: RunTables) -> pd.DataFrame:
    """The copies of preempted requests in order of time, with the times of their pass."""
    steps = run.steps[[*OF_PASS, "start_s", "schedule_s", "forward_s"]]
    rows = run.records.moves.merge(steps.rename(columns={"start_s": "pass_s"}), on=OF_PASS)
    return rows.sort_values([*OF_PASS, "start_s"], ignore_index=True)

"""Oracles of preemptions: none is lost, each is where and when the scheduler did it."""

import numpy as np
import pandas as pd

from kvscope.actions import keeps_tokens
from kvscope.analyse.oracles.recorded_run import (
    OF_PASS,
    OF_REQUEST,
    TOLERANCE_S,
    RecordedRun,
    blocks_of,
    both,
    where,
)
from kvscope.oracle import Violations

ALIKE = ("policy", "refused", "tokens")
"""What a resumption repeats of its preemption."""


def preemptions_differ(run: RecordedRun) -> Violations:
    """The preemptions recorded are those that the scheduler counted, of each pass and request."""
    return both(
        _counts_differ(run, run.steps, OF_PASS, "preempted_requests"),
        _counts_differ(run, run.requests, OF_REQUEST, "preemptions"),
    )


def _counts_differ(
    run: RecordedRun, frame: pd.DataFrame, key: list[str], column: str
) -> Violations:
    lost = run.preemptions[run.preemptions["event"] == "preempt"]
    found = frame.join(lost.groupby(key).size().rename("rows"), on=key).fillna({"rows": 0})
    return where(
        found,
        found[column] != found["rows"],
        lambda r: f"the scheduler counted {r[column]} preemptions, recorded are {r['rows']:.0f}",
    )


def context_wrong(run: RecordedRun) -> Violations:
    """A request goes on where it was; after a preemption, with the tokens that were kept of it."""
    rows = _with_preemption(run)
    rows["expected"] = np.where(rows["resumes"], rows["kept"], rows["previous_tokens"])
    return where(
        rows,
        rows["context_tokens"] != rows["expected"],
        lambda r: f"{r['context_tokens']} tokens in its context, it had {r['expected']:.0f}",
    )


def resumed_wrong(run: RecordedRun) -> Violations:
    """A request counts as resumed from its preemption until it gives a token, and only then."""
    rows = run.batch
    given = rows["step"].where(rows["sampled_tokens"] > 0)
    own = [rows[key] for key in OF_REQUEST]
    before = given.groupby(own).ffill().groupby(own).shift()
    expected = (rows["preempted_step"] >= 0) & ~(before >= rows["preempted_step"])
    return where(
        rows,
        rows["resumed"].astype(bool) != expected,
        lambda r: "counts as resumed" if r["resumed"] else "does not count as resumed",
    )


def resumption_wrong(run: RecordedRun) -> Violations:
    """Each preempted request that runs again has one resumption, which repeats its preemption.

    It is of the first pass after it, and says how long the request waited, and what it computes
    again.
    """
    due = _with_preemption(run)
    due = due[due["resumes"]]
    back = run.preemptions[run.preemptions["event"] == "resume"]
    found = due.merge(back, on=[*OF_REQUEST, "step"], how="outer", suffixes=("", "_back"))
    lost = found["event_back"].isna() | found["event"].isna()
    differ = pd.Series(False, found.index)
    for column in ALIKE:
        differ |= found[column] != found[f"{column}_back"]
    wait = found["start_s"] - found["time_s"]
    differ |= (found["wait_s_back"] - wait).abs() > TOLERANCE_S
    differ |= (found["time_s_back"] - found["start_s"]).abs() > TOLERANCE_S
    differ |= found["recomputed_tokens_back"] != found["tokens"] - found["context_tokens"]
    given = blocks_of(found["end_tokens"].fillna(0), run.records.block_size)
    differ |= found["blocks_back"] != given
    return both(
        where(found, lost, lambda _: "a resumption without preemption, or the reverse"),
        where(found, differ & ~lost, lambda _: "its resumption does not fit its preemption"),
    )


def preemption_misplaced(run: RecordedRun) -> Violations:
    """A request is preempted while its pass is scheduled, with the tokens and blocks it had."""
    lost = run.preemptions[run.preemptions["event"] == "preempt"]
    found = lost.merge(run.steps[[*OF_PASS, "start_s", "schedule_s", "before_s"]], on=OF_PASS)
    early = found["time_s"] < found["before_s"] - TOLERANCE_S
    late = found["time_s"] > found["start_s"] + found["schedule_s"] + TOLERANCE_S
    rows = run.batch[[*OF_REQUEST, "step", "end_tokens"]].rename(columns={"step": "at"})
    before = pd.merge_asof(
        found.assign(step=found["step"].astype(np.int64) - 1).reset_index().sort_values("step"),
        rows.astype({"at": np.int64}).sort_values("at"),
        left_on="step",
        right_on="at",
        by=OF_REQUEST,
    ).set_index("index")
    had = before["end_tokens"].reindex(found.index)
    size = run.records.block_size
    differ = (found["tokens"] != had) | (found["blocks"] != blocks_of(had.fillna(0), size))
    return both(
        where(found, early | late, lambda _: "preempted outside of its pass's schedule"),
        where(found.assign(had=had), differ, _had),
    )


def _had(row: object) -> str:
    found = pd.Series(row)
    return f"{found['tokens']} tokens in {found['blocks']} blocks taken, it had {found['had']:.0f}"


def refused_wrong(run: RecordedRun) -> Violations:
    """A copy is refused where the host pool has no room for it; swap recomputes nothing else.

    In use are at most the blocks of the pass before and those of the victims before it in its own.
    """
    lost = run.preemptions[run.preemptions["event"] == "preempt"]
    pool = run.steps[[*OF_PASS, "host_blocks_total"]].copy()
    pool["held"] = run.steps.groupby("repeat")["host_blocks_used"].shift(fill_value=0)
    lost = lost.merge(pool, on=OF_PASS, how="left").sort_values([*OF_PASS, "time_s"])
    need = blocks_of(lost["tokens"], run.records.block_size)
    kept = need.where(lost["policy"] == "swap", 0)
    before = kept.groupby([lost[key] for key in OF_PASS]).cumsum() - kept
    room = lost["host_blocks_total"] - lost["held"] - before
    refused = lost["refused"].astype(bool)
    wrong = refused & ((need <= room) | (lost["host_blocks_total"] == 0))
    if run.section("overflow").get("name") == "swap":
        wrong |= (lost["policy"] == "recompute") & (lost["tokens"] > 0) & ~refused
    lost = lost.assign(need=need, room=room)
    words = "{0} blocks {1}, there was room for {2}"
    return where(
        lost,
        wrong,
        lambda r: words.format(r["need"], "refused" if r["refused"] else "given up", r["room"]),
    )


def _with_preemption(run: RecordedRun) -> pd.DataFrame:
    """The rows of `batch`; of those that resume, with their preemption and what was `kept`."""
    rows = run.batch
    resumes = rows["preempted_step"] > rows["previous_step"]
    rows = rows.assign(resumes=resumes & (rows["preempted_step"] >= 0))
    lost = run.preemptions[run.preemptions["event"] == "preempt"]
    lost = lost.rename(columns={"step": "preempted_step", "recomputed_tokens": "_"})
    rows = rows.merge(lost.drop(columns="_"), on=[*OF_REQUEST, "preempted_step"], how="left")
    rows = rows.merge(run.steps[[*OF_PASS, "start_s"]], on=OF_PASS, how="left")
    rows["kept"] = rows["tokens"].where(keeps_tokens(rows["policy"]), 0)
    return rows

"""Oracles of memory: what the requests hold fits, and is what the passes say is in use."""

import numpy as np
import pandas as pd

from kvscope.actions import copies_blocks
from kvscope.analyse.oracles.recorded_run import (
    OF_REQUEST,
    RecordedRun,
    blocks_of,
    both,
    earliest_after,
    where,
)
from kvscope.oracle import Violations


def tokens_differ(run: RecordedRun) -> Violations:
    """The tokens in the cache after a pass are those that its requests have left there."""
    steps = run.steps.assign(expected=run.over_passes(run.stays, run.stays["tokens"]))
    return where(
        steps,
        steps["kv_tokens_used"] != steps["expected"],
        lambda r: f"{r['kv_tokens_used']} tokens in the cache, its requests have {r['expected']}",
    )


def blocks_differ(run: RecordedRun) -> Violations:
    """The blocks in use are those that the tokens of each request fill; they fit into the cache."""
    total = run.engine["kv_blocks_total"]
    needed = blocks_of(run.stays["tokens"], run.records.block_size)
    steps = run.steps.assign(expected=run.over_passes(run.stays, needed))
    return both(
        where(
            steps,
            steps["kv_blocks_used"] != steps["expected"],
            lambda r: f"{r['kv_blocks_used']} blocks in use, its tokens fill {r['expected']}",
        ),
        where(
            steps,
            (steps["kv_blocks_total"] != total) | (steps["kv_blocks_used"] > total),
            lambda r: f"{r['kv_blocks_used']} of {r['kv_blocks_total']} blocks, there are {total}",
        ),
    )


def host_pool_differs(run: RecordedRun) -> Violations:
    """The host pool holds the blocks of the swapped-out requests, and has room for them."""
    steps = run.steps.assign(expected=run.over_passes(*_swapped_out(run)))
    used, total = steps["host_blocks_used"], steps["host_blocks_total"]
    made = run.engine.get("host_blocks_total", total.iloc[0])
    return both(
        where(
            steps,
            used != steps["expected"],
            lambda r: f"{r['host_blocks_used']} host blocks, swapped out are {r['expected']}",
        ),
        where(
            steps,
            (used > total) | (total != made),
            lambda r: f"{r['host_blocks_used']} of {r['host_blocks_total']} host blocks of {made}",
        ),
    )


def _swapped_out(run: RecordedRun) -> tuple[pd.DataFrame, pd.Series]:
    """From when to when requests were swapped out, and the blocks of each."""
    rows = run.preemptions[copies_blocks(run.preemptions["policy"])]
    out = rows[rows["event"] == "preempt"].reset_index(drop=True)
    back = rows[rows["event"] == "resume"].rename(columns={"step": "at"})[[*OF_REQUEST, "at"]]
    ended = out.join(run.ended, on=OF_REQUEST)["at"].fillna(np.inf)
    until = np.minimum(earliest_after(out, back).fillna(np.inf), ended)
    return out.assign(until=until), blocks_of(out["tokens"], run.records.block_size)

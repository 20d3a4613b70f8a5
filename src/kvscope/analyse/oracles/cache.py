"""Oracles of memory: the tokens and blocks in use are those that the requests hold."""

import numpy as np
import pandas as pd

from kvscope.actions import copies_blocks
from kvscope.analyse.oracles.run_tables import (
    OF_REQUEST,
    RunTables,
    bad_rows,
    blocks_of,
    combine,
    first_after,
)
from kvscope.oracle import Violations


def tokens_differ(run: RunTables) -> Violations:
    """The tokens in the cache after a pass are the sum of the tokens that requests hold there."""
    steps = run.steps.assign(expected=run.sum_over_passes(run.stays, run.stays["tokens"]))
    return bad_rows(
        steps,
        steps["kv_tokens_used"] != steps["expected"],
        lambda r: f"{r['kv_tokens_used']} tokens in the cache, requests hold {r['expected']}",
    )


def blocks_differ(run: RunTables) -> Violations:
    """The blocks in use are those that hold the tokens of each request, and fit into the cache."""
    total = run.engine["kv_blocks_total"]
    needed = blocks_of(run.stays["slot_tokens"], run.records.block_size)
    steps = run.steps.assign(expected=run.sum_over_passes(run.stays, needed))
    return combine(
        bad_rows(
            steps,
            steps["kv_blocks_used"] != steps["expected"],
            lambda r: f"{r['kv_blocks_used']} blocks in use, requests hold {r['expected']}",
        ),
        bad_rows(
            steps,
            (steps["kv_blocks_total"] != total) | (steps["kv_blocks_used"] > total),
            lambda r: (
                f"{r['kv_blocks_used']} of {r['kv_blocks_total']} blocks; run.json has {total}"
            ),
        ),
    )


def host_pool_differs(run: RunTables) -> Violations:
    """The host blocks in use are those of the swapped-out requests, and fit into the host pool."""
    steps = run.steps.assign(expected=run.sum_over_passes(*_swapped_out(run)))
    used, total = steps["host_blocks_used"], steps["host_blocks_total"]
    made = run.engine.get("host_blocks_total", total.iloc[0])
    return combine(
        bad_rows(
            steps,
            used != steps["expected"],
            lambda r: f"{r['host_blocks_used']} host blocks in use, expected {r['expected']}",
        ),
        bad_rows(
            steps,
            (used > total) | (total != made),
            lambda r: (
                f"{r['host_blocks_used']} of {r['host_blocks_total']} host blocks; run.json: {made}"
            ),
        ),
    )


def _swapped_out(run: RunTables) -> tuple[pd.DataFrame, pd.Series]:
    """The swapped-out spans of requests (`step` to `until`), and the host blocks of each."""
    victims, resumed = run.victims, run.resumptions
    out = victims[copies_blocks(victims["policy"])].reset_index(drop=True)
    back = resumed[copies_blocks(resumed["policy"])].rename(columns={"step": "at"})[
        [*OF_REQUEST, "at"]
    ]
    ended = out.join(run.ended, on=OF_REQUEST)["at"].fillna(np.inf)
    until = np.minimum(first_after(out, back).fillna(np.inf), ended)
    return out.assign(until=until), blocks_of(out["tokens"], run.records.block_size)

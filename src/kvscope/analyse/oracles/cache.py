"""Oracles of memory: the tokens and blocks in use are those that the requests hold."""

from math import gcd

import numpy as np
import pandas as pd

from kvscope.actions import copies_blocks
from kvscope.analyse.oracles.held import held_blocks, kept_blocks
from kvscope.analyse.oracles.run_tables import (
    RunTables,
    bad_rows,
    blocks_of,
    combine,
    counts_of,
)
from kvscope.oracle import Violations


def tokens_differ(run: RunTables) -> Violations:
    """The tokens in the cache after a pass are those that requests hold there, each block once."""
    held = run.sum_over_passes(run.stays, run.stays["tokens"])
    steps = run.steps.assign(expected=held - run.sharing_in_passes.extra * run.records.block_size)
    return bad_rows(
        steps,
        steps["kv_tokens_used"] != steps["expected"],
        lambda r: f"{r['kv_tokens_used']} tokens in the cache, requests hold {r['expected']}",
    )


def blocks_differ(run: RunTables) -> Violations:
    """The blocks in use are those that hold the tokens of each request, and fit into the cache.

    A block that several requests hold counts once; one that no request holds is free, whether it is
    in the prefix cache or not. A request holds those that are loaded for it, too. Where KV groups
    differ, it holds blocks of each, without those that a window has left behind.
    """
    total, stays, loading = run.engine.kv_blocks_total, run.stays, run.loading
    held = held_blocks(run, stays["context_tokens"], stays["slot_tokens"])
    loaded = blocks_of(loading["slot_tokens"], run.records.block_size)
    expected = run.sum_over_passes(stays, held) + run.sum_over_passes(loading, loaded)
    steps = run.steps.assign(expected=expected - run.sharing.extra)
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


def context_bytes_wrong(run: RunTables) -> Violations:
    """The bytes in use are those of K and V in some blocks, of activations in others, and of ids,
    which take none.
    """
    sizes = (int(run.engine.block_bytes or 0), run.engine.activation_block_bytes)
    most = run.steps["kv_blocks_used"].astype("int64") * max(sizes)
    found = run.steps["context_bytes"].fillna(-1).astype("int64")
    # whole blocks: multiples of what divides both sizes
    wrong = ~found.between(0, most) | (found % gcd(*sizes) != 0)
    return bad_rows(
        run.steps,
        wrong,
        lambda r: (
            f"{r['context_bytes']} bytes in {r['kv_blocks_used']} blocks of {sizes[0]} bytes as K "
            f"and V, {sizes[1]} as activations"
        ),
    )


def host_pool_differs(run: RunTables) -> Violations:
    """The host blocks in use are those of the swapped-out requests, and fit into the host pool.

    Blocks that other requests held are not copied, and so are not in the pool.
    The activations of every request that runs and is saved, or is to be rebuilt, are there as well,
    and what vLLM's offloading has stored until the host was full. With the last pass there are what
    it stores after that.
    """
    away = run.away(copies_blocks)
    kept = kept_blocks(run, away) - counts_of(away["shared_blocks"])
    swapped = run.sum_over_passes(away, kept)
    steps = run.steps.assign(expected=swapped + run.activation_blocks)
    used, total = steps["host_blocks_used"], steps["host_blocks_total"]
    if run.offloads:
        stored = run.sum_over_passes(run.stored.assign(until=np.inf), run.stored["blocks"])
        last = ~steps["repeat"].duplicated(keep="last")
        filled = pd.Series(np.minimum(stored, total), steps.index)
        steps["expected"] = filled.where(~last | (used > filled), used)
    recorded = run.engine.host_blocks_total
    made = total.iloc[0] if recorded is None else recorded
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

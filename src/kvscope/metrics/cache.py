"""Metrics of passes, the KV cache and preemptions."""

import math
from collections.abc import Callable
from functools import wraps

import numpy as np
import pandas as pd

from kvscope.metrics.metric import metric, ratio
from kvscope.plan.actions import keeps_tokens
from kvscope.tables.kv_use import token_share
from kvscope.tables.run_view import RunView


@metric("passes", "Forward passes", display="a repeat")
def forward_passes(records: RunView) -> float:
    """rows of S"""
    return float(len(records.steps))


@metric("requests", "Requests in a pass, mean", column=165)
def pass_requests_mean(records: RunView) -> float:
    """Σ(S.requests · S.duration_s) / ΣS.duration_s"""
    return _time_weighted(records.steps["requests"].astype(float), records.steps)


@metric("share", "KV use in blocks, mean", column=170, first=True)
def kv_block_utilization_mean(records: RunView) -> float:
    """Σ(S.kv_blocks_used / S.kv_blocks_total · S.duration_s) / ΣS.duration_s"""
    steps = records.steps
    return _time_weighted(steps["kv_blocks_used"] / steps["kv_blocks_total"], steps)


@metric("share", "KV use in blocks, peak")
def kv_block_utilization_peak(records: RunView) -> float:
    """max(S.kv_blocks_used / S.kv_blocks_total)"""
    return float((records.steps["kv_blocks_used"] / records.steps["kv_blocks_total"]).max())


@metric("B", "KV cache in use, peak", display="GiB")
def kv_bytes_peak(records: RunView) -> float:
    """max(S.context_bytes), or where it is null max(S.kv_blocks_used) · engine.block_bytes of
    `run.json`
    """
    bytes_ = records.steps["context_bytes"].astype(float)
    if bytes_.notna().all():
        return float(bytes_.max())
    return float(records.steps["kv_blocks_used"].max()) * records.block_bytes


@metric("share", "KV use in tokens, mean", column=180)
def kv_token_utilization_mean(records: RunView) -> float:
    """Σ(S.kv_tokens_used / (S.kv_blocks_total · block size) · S.duration_s) / ΣS.duration_s; no
    value where KV groups differ
    """
    return _time_weighted(token_share(records.steps, records.block_size), records.steps)


@metric("share", "KV use in bytes, mean", optional=True, column=182)
def kv_byte_utilization_mean(records: RunView) -> float:
    """Σ(S.kv_bytes_used / (S.kv_blocks_total · engine.block_bytes of `run.json`) · S.duration_s) /
    ΣS.duration_s; no value where one KV group keeps all tokens
    """
    steps = _of_groups(records)
    total = steps["kv_blocks_total"] * records.block_bytes
    return _time_weighted(steps["kv_bytes_used"].astype(float) / total, steps)


@metric("share", "Padding of KV blocks, mean", better=-1, optional=True, column=184)
def kv_padding_mean(records: RunView) -> float:
    """Σ((1 − S.kv_bytes_used / (S.kv_blocks_used · engine.block_bytes)) · S.duration_s) /
    ΣS.duration_s; no value where one KV group keeps all tokens
    """
    steps = _of_groups(records)
    taken = steps["kv_blocks_used"] * records.block_bytes
    return _time_weighted(1 - steps["kv_bytes_used"].astype(float) / taken, steps)


@metric("B", "Bytes lost by a preemption, mean", display="MiB", optional=True, column=186)
def preempted_bytes_mean(records: RunView) -> float:
    """mean of P.kv_bytes, over preemptions"""
    return float(records.preemptions["kv_bytes"].astype(float).mean())


def _of_groups(records: RunView) -> pd.DataFrame:
    """The passes of a run whose KV groups differ."""
    steps = records.steps
    return steps[steps["group_blocks_used"].notna()]


@metric("share", "Host pool in use, peak")
def host_block_utilization_peak(records: RunView) -> float:
    """max(S.host_blocks_used / S.host_blocks_total); no value without a pool"""
    pool = records.steps[records.steps["host_blocks_total"] > 0]
    return float((pool["host_blocks_used"] / pool["host_blocks_total"]).max())


def _time_weighted(share: pd.Series, steps: pd.DataFrame) -> float:
    """The mean of a share over passes, weighted by their durations."""
    duration = steps["duration_s"]
    return ratio(float((share * duration).sum(skipna=False)), float(duration.sum()))


# ------------------------------------------------------------------ preemptions


@metric("preemptions", "Preemptions", better=-1, display="a repeat", column=90, first=True)
def preemptions(records: RunView) -> float:
    """rows of P with event `preempt`"""
    return float((records.preemptions["event"] == "preempt").sum())


@metric("preemptions", "Preemptions of one request, most", better=-1)
def most_preemptions(records: RunView) -> float:
    """most rows of P with event `preempt` of one request; 0 without any"""
    rows = records.preemptions.query("event == 'preempt'")
    return float(rows["request_id"].value_counts().max()) if len(rows) else 0.0


@metric("tokens", "Recomputed tokens", better=-1, display="tokens a repeat", column=100)
def recomputed_tokens(records: RunView) -> float:
    """ΣS.recomputed_tokens: tokens whose K and V were computed, lost, and computed again"""
    return float(records.steps["recomputed_tokens"].sum())


@metric("tokens", "Tokens lost by preemptions", better=-1, display="a repeat")
def lost_tokens(records: RunView) -> float:
    """ΣP.tokens, over events `preempt` of actions that keep nothing: tokens that are computed again
    unless they are found
    """
    rows = records.preemptions
    return float(rows["tokens"][(rows["event"] == "preempt") & ~keeps_tokens(rows["policy"])].sum())


def _of_prefix_cache(function: Callable[[RunView], float]) -> Callable[[RunView], float]:
    """A metric that a run without a prefix cache does not define."""

    @wraps(function)
    def of(records: RunView) -> float:
        record = records.record
        by_server = record.recorded and record.recorded.prefix_caching
        caches = by_server or record.engine.states("prefix_cache")
        return function(records) if caches else math.nan

    return of


def _of_cached_blocks(function: Callable[[RunView], float]) -> Callable[[RunView], float]:
    """A metric of which blocks were found; recordings of several KV groups do not know them."""

    @_of_prefix_cache
    @wraps(function)
    def of(records: RunView) -> float:
        recorded = records.batch["own_hit_tokens"].notna().any()
        return function(records) if recorded else math.nan

    return of


@metric("share", "Prefix cache hits", better=1, optional=True, column=104, first=True)
@_of_prefix_cache
def prefix_cache_hit_rate(records: RunView) -> float:
    """ΣB.hit_tokens / Σ(B.hit_tokens + S.prefill_tokens): of the tokens of prompts and resumptions
    that are on the device, those found in the prefix cache; no value without one
    """
    hits = float(records.batch["hit_tokens"].sum())
    return ratio(hits, hits + float(records.steps["prefill_tokens"].sum()))


@metric("tokens", "Own tokens found", better=1, optional=True, column=105, display="a repeat")
@_of_cached_blocks
def own_hit_tokens(records: RunView) -> float:
    """ΣB.own_hit_tokens: tokens found in blocks that the request itself had computed and lost"""
    return float(records.batch["own_hit_tokens"].sum())


@metric("tokens", "Others' tokens found", better=1, optional=True, column=106, display="a repeat")
@_of_cached_blocks
def other_hit_tokens(records: RunView) -> float:
    """Σ(B.hit_tokens − B.own_hit_tokens): tokens found in blocks that another request computed"""
    return float((records.batch["hit_tokens"] - records.batch["own_hit_tokens"]).sum())


@metric("share", "Lost tokens found again", better=1, optional=True, column=107)
@_of_prefix_cache
def lost_tokens_found_share(records: RunView) -> float:
    """Σmin(P.hit_tokens, P.tokens) / ΣP.tokens, over events `resume` of actions that keep nothing:
    of the tokens that preempted requests had lost, those found in the prefix cache on resumption
    """
    rows = records.preemptions
    rows = rows[(rows["event"] == "resume") & ~keeps_tokens(rows["policy"])]
    hits = np.minimum(rows["hit_tokens"].astype(float), rows["tokens"])
    return ratio(float(hits.sum()), float(rows["tokens"].sum()))


@metric("blocks", "Evictions from the prefix cache", better=-1, optional=True, display="a repeat")
@_of_cached_blocks
def prefix_cache_evictions(records: RunView) -> float:
    """rows of `evictions`: cached blocks that were given to requests with other tokens"""
    return float(len(records.evictions))


@metric("s", "Wait of a preempted request, mean", better=-1)
def preemption_wait_mean_s(records: RunView) -> float:
    """mean of P.wait_s: from a preemption to the schedule that resumes the request"""
    return float(records.preemptions.query("event == 'resume'")["wait_s"].astype(float).mean())


@metric("s", "Wait of a preempted request, longest", better=-1)
def preemption_wait_longest_s(records: RunView) -> float:
    """greatest ΣP.wait_s of one request: all of its waits to resume, which is its starvation"""
    rows = records.preemptions.query("event == 'resume'")
    waits = rows["wait_s"].astype(float).groupby(rows["request_id"]).sum(min_count=1)
    return float(waits.max())

"""Declarations of the metrics of KV events, which `access` computes."""

import math
from typing import Any

from kvscope.analyse.access import ACCESS_FREE_SHARE, trace_of
from kvscope.analyse.metric import Metric
from kvscope.analyse.run_view import RunView


def _metric(
    name: str, unit: str, heading: str, formula: str, needs_all: str = "", **display: Any
) -> Metric:
    def of(records: RunView) -> float:
        trace = trace_of(records)
        return trace.metric(name, records.steps) if trace else math.nan

    return Metric(name, unit, heading, formula, of, needs_all=needs_all, **display)


_LAG = (
    "V read's start_ns − K read's start_ns, of pairs of reads with equal step, layer, request_id, "
    "kv_head, block_position and worker. Where a worker reads a block several times in a pass "
    "(tiles of a prefill), its n-th K read belongs to its n-th V read, by start_ns. Reads without "
    "a counterpart are left out"
)
_BURST = "of bursts: max(E.end_ns) − min(E.start_ns)"
_IDLE = "of reuses: min(E.start_ns) of the burst − max(E.end_ns) of the burst before"
METRICS = (
    _metric("kv_lag_p50_s", "s", "K to V, median", _LAG, display="µs"),
    _metric("kv_lag_p95_s", "s", "K to V, p95", _LAG, display="µs"),
    _metric(
        "kv_read_parallelism",
        "reads",
        "Reads at a time",
        "Σ duration of reads / |∪ of reads|",
        "heads",
        optional=True,
        column=190,
        first=True,
    ),
    _metric(
        "kv_read_amplification",
        "ratio",
        "Tokens read per token held",
        "Σ E.tokens of reads / Σ max(E.tokens) over (step, layer, request_id, kv_head, "
        "block_position, kind) of reads: bytes read over those of reading each context's K and V "
        "once a pass, layer and head. 1 for decode; a prefill reads a block once for every tile of "
        "queries that reaches it",
    ),
    _metric("kv_burst_p50_s", "s", "Burst, median", _BURST, "heads"),
    _metric("kv_burst_p95_s", "s", "Burst, p95", _BURST, "heads"),
    _metric("kv_idle_p50_s", "s", "Idle time, median", _IDLE, "heads, passes", display="ms"),
    _metric("kv_idle_p95_s", "s", "Idle time, p95", _IDLE, "heads, passes", display="ms"),
    _metric(
        "kv_idle_share",
        "share",
        "Time blocks lie idle",
        "Σ idle time of reuses / (Σ idle time of reuses + Σ length of bursts)",
        "heads, passes",
        optional=True,
        column=200,
        first=True,
    ),
    _metric(
        "kv_reuse_distance_p50_blocks",
        "blocks",
        "Reuse distance, median",
        "of reuses: number of different other blocks with a burst that starts after the burst "
        "before and before this one; their median",
        "layers, passes",
    ),
    _metric(
        "kv_reuse_distance_p50_bytes",
        "B",
        "Reuse distance, median",
        "the same · engine.block_bytes / engine.layers of `run.json`",
        "layers, passes",
    ),
    _metric(
        ACCESS_FREE_SHARE,
        "share",
        "Pass time without access",
        "1 − |∪ of E| / ΣS.duration_s, over the passes that have events",
        "layers, heads",
    ),
)

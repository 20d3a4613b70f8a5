"""Declarations of the metrics of KV events, which `access` computes."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from kvscope.api.metrics import metric
from kvscope.api.runs import RunView
from kvscope_kernels.analyse.access import ACCESS_FREE_SHARE, trace_of

_places: Iterator[int] = count(1000, 10)


@dataclass(frozen=True)
class AccessMetric(metric.Metric):
    """A metric of KV events; `needs_all` names what must be traced in full."""

    needs_all: str = ""


def _metric(
    name: str, unit: str, heading: str, formula: str, needs_all: str = "", **display: Any
) -> AccessMetric:
    def of(records: RunView) -> float:
        trace = trace_of(records)
        return trace.metric(name, records.steps) if trace else math.nan

    place: dict[str, Any] = {"order": next(_places), "needs_passes": False}
    return AccessMetric(name, unit, heading, formula, of, needs_all=needs_all, **place, **display)


_LAG = (
    "V read's start_ns − K read's start_ns, of pairs of reads with equal step, layer, request_id, "
    "kv_head, block_position and worker. Where a worker reads a block several times in a pass "
    "(tiles of a prefill), its n-th K read belongs to its n-th V read, by start_ns. Reads without "
    "a counterpart are left out"
)
_BURST = "of bursts: max(E.end_ns) − min(E.start_ns)"
_IDLE = "of reuses: min(E.start_ns) of the burst − max(E.end_ns) of the burst before"
KV_LAG_P50_S = _metric("kv_lag_p50_s", "s", "K to V, median", _LAG, display="µs")
KV_LAG_P95_S = _metric("kv_lag_p95_s", "s", "K to V, p95", _LAG, display="µs")
KV_READ_PARALLELISM = _metric(
    "kv_read_parallelism",
    "reads",
    "Reads at a time",
    "Σ duration of reads / |∪ of reads|",
    "heads",
    optional=True,
    column=190,
    first=True,
)
KV_READ_AMPLIFICATION = _metric(
    "kv_read_amplification",
    "ratio",
    "Tokens read per token held",
    "Σ E.tokens of reads / Σ max(E.tokens) over (step, layer, request_id, kv_head, "
    "block_position, kind) of reads: bytes read over those of reading each context's K and V "
    "once a pass, layer and head. 1 for decode; a prefill reads a block once for every tile of "
    "queries that reaches it",
)
KV_BURST_P50_S = _metric("kv_burst_p50_s", "s", "Burst, median", _BURST, "heads")
KV_BURST_P95_S = _metric("kv_burst_p95_s", "s", "Burst, p95", _BURST, "heads")
KV_IDLE_P50_S = _metric(
    "kv_idle_p50_s", "s", "Idle time, median", _IDLE, "heads, passes", display="ms"
)
KV_IDLE_P95_S = _metric(
    "kv_idle_p95_s", "s", "Idle time, p95", _IDLE, "heads, passes", display="ms"
)
KV_IDLE_SHARE = _metric(
    "kv_idle_share",
    "share",
    "Time blocks lie idle",
    "Σ idle time of reuses / (Σ idle time of reuses + Σ length of bursts)",
    "heads, passes",
    optional=True,
    column=200,
    first=True,
)
KV_REUSE_DISTANCE_P50_BLOCKS = _metric(
    "kv_reuse_distance_p50_blocks",
    "blocks",
    "Reuse distance, median",
    "of reuses: number of different other blocks with a burst that starts after the burst "
    "before and before this one; their median",
    "layers, passes",
)
KV_REUSE_DISTANCE_P50_BYTES = _metric(
    "kv_reuse_distance_p50_bytes",
    "B",
    "Reuse distance, median",
    "the same · engine.block_bytes / engine.layers of `run.json`",
    "layers, passes",
)
KV_ACCESS_FREE_SHARE = _metric(
    ACCESS_FREE_SHARE,
    "share",
    "Pass time without access",
    "1 − |∪ of E| / ΣS.duration_s, over the passes that have events",
    "layers, heads",
)

METRICS = (
    KV_LAG_P50_S,
    KV_LAG_P95_S,
    KV_READ_PARALLELISM,
    KV_READ_AMPLIFICATION,
    KV_BURST_P50_S,
    KV_BURST_P95_S,
    KV_IDLE_P50_S,
    KV_IDLE_P95_S,
    KV_IDLE_SHARE,
    KV_REUSE_DISTANCE_P50_BLOCKS,
    KV_REUSE_DISTANCE_P50_BYTES,
    KV_ACCESS_FREE_SHARE,
)

"""Metrics of KV events: how attention kernels access the KV cache in one repeat.

A metric that needs all layers, heads or passes is NaN if only some were traced. All are NaN for a
run without events. docs/METRICS.md defines bursts and reuses.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from kvscope.api.runs import RunData, kept
from kvscope.api.sections import ReportedRun
from kvscope.api.tables import tables
from kvscope_kernels import kv_events
from kvscope_kernels.analyse.events import Events, read_events
from kvscope_kernels.analyse.reuse import Bursts, Reuses, bursts_of, keys, reuses_of, starts_of
from kvscope_kernels.arraytypes import Int64s

NANOSECOND = 1e-9
ACCESS_FREE_SHARE = "kv_access_free_share"


@dataclass(frozen=True)
class KvTrace:
    """The KV events of a run or of one of its repeats; read on first use.

    `all_layers`, `all_heads` and `all_passes` are false where only a sample was traced.
    `block_bytes` is the size of a block in one layer, NaN if unknown. `preemptions` is the path of
    that table; None if no request was preempted. `hits` is that of the table of blocks that were
    found in the prefix cache; None without one.
    """

    path: Path
    all_layers: bool = True
    all_heads: bool = True
    all_passes: bool = True
    block_bytes: float = math.nan
    repeat: int = 0
    preemptions: Path | None = None
    hits: Path | None = None

    def of_repeat(self, number: int) -> "KvTrace":
        """The events of one repeat."""
        return replace(self, repeat=number)

    def metric(self, name: str, steps: pd.DataFrame) -> float:
        """A metric of `access_metrics` by name, or NaN; `steps` are the passes of the repeat."""
        if name == ACCESS_FREE_SHARE:
            return self._access_free_share(steps)
        return self._summary.metrics.get(name, math.nan)

    def bursts(self, events: Events) -> Bursts:
        """The bursts of these events, which are of this repeat."""
        return bursts_of(events.batches(), self._preempted(), self._hits())

    def _hits(self) -> pd.DataFrame | None:
        """The rows of `hits` of the repeat."""
        if self.hits is None:
            return None
        rows = tables.read(tables.HITS, self.hits)
        return rows[rows["repeat"] == self.repeat]

    def _preempted(self) -> pd.DataFrame:
        """The preemptions of the repeat: rows of the `preemptions` table."""
        if self.preemptions is None:
            return tables.PREEMPTIONS.empty()
        rows = tables.read(tables.PREEMPTIONS, self.preemptions)
        return rows[(rows["repeat"] == self.repeat) & (rows["event"] == "preempt")]

    @cached_property
    def _summary(self) -> "_Summary":
        return _summary(self)

    def _access_free_share(self, steps: pd.DataFrame) -> float:
        traced = steps["step"].isin(self._summary.steps)
        duration_ns = float(steps.loc[traced, "duration_s"].sum()) / NANOSECOND
        if not (self.all_layers and self.all_heads and duration_ns):
            return math.nan
        return 1 - self._summary.covered_ns / duration_ns


def find_trace(records: RunData) -> KvTrace | None:
    """The trace of a whole run; None if no KV event was traced, or the run failed.

    A traced run has a trace even if its events were not collected; reading them then fails.
    """
    path = records.tables_directory / tables.KV_EVENTS.file
    tracing, engine = records.record.tracing, records.record.engine
    if not records.record.complete or not (tracing or has_rows(path)):
        return None
    strides = (tracing.layer_stride, tracing.head_stride, tracing.step_stride) if tracing else ()
    layer, head, step = (stride == 1 for stride in strides or (1, 1, 1))
    block_bytes = (engine.block_bytes or math.nan) / (engine.layers or math.nan)
    run = records.directory
    preemptions, hits = run / tables.PREEMPTIONS.file, run / tables.HITS.file
    present = hits if hits.exists() else None
    return KvTrace(path, layer, head, step, block_bytes, preemptions=preemptions, hits=present)


@kept
def trace_of(records: RunData) -> KvTrace | None:
    """The KV events of records; None if they have none."""
    if records.repeat is None:
        return find_trace(records)
    whole = trace_of(records.whole)
    return whole and whole.of_repeat(records.repeat)


def trace_to_draw(run: ReportedRun) -> KvTrace | None:
    """The KV events of a run that a page shows; None if there are none."""
    trace = trace_of(run.records)
    return trace if trace and has_rows(trace.path) else None


def has_rows(path: Path) -> bool:
    """True if the Parquet file exists and has rows."""
    return path.is_file() and bool(pq.read_metadata(path).num_rows)


@dataclass(frozen=True)
class _Summary:
    """The metrics of a repeat's events, the traced steps, and the nanoseconds with any access."""

    metrics: dict[str, float]
    steps: Int64s
    covered_ns: int


def _summary(trace: KvTrace) -> _Summary:
    events = read_events(trace.path, trace.repeat)
    totals = _Totals()
    for batch in events.batches():
        totals.add(batch)
    metrics = totals.metrics(trace) | _reuse_metrics(trace, trace.bursts(events))
    return _Summary(metrics, np.unique(events.step).astype(np.int64), totals.covered_ns)


def lags_ns(reads: Events, group: Int64s) -> Int64s:
    """Nanoseconds from the start of each K read to the start of its V read.

    `reads` are ordered by pass, layer, request, head, block position, kind, worker and start;
    `group` numbers them by all keys before the kind. Where several tiles of a prefill read a block,
    the n-th K read of a worker belongs to its n-th V read.
    """
    first = starts_of(group)
    size = np.diff(np.append(first, len(group)))
    k_reads = np.add.reduceat((reads.kind == kv_events.K_READ).astype(np.int64), first)
    place = np.repeat(np.arange(len(first)), size)
    k = np.flatnonzero(reads.kind == kv_events.K_READ)
    v = k + k_reads[place[k]]  # both kinds have the same order
    inside = v < (first + size)[place[k]]
    k, v = k[inside], v[inside]
    paired = reads.worker[k] == reads.worker[v]
    lags: Int64s = reads.start_ns[v[paired]] - reads.start_ns[k[paired]]
    return lags


def covered_ns(start: Int64s, end: Int64s) -> int:
    """Nanoseconds covered by the union of intervals."""
    if not len(start):
        return 0
    order = np.argsort(start)
    start, end = start[order], np.maximum.accumulate(end[order])
    gaps = np.maximum(start[1:] - end[:-1], 0)
    return int(end[-1] - start[0] - gaps.sum())


class _Totals:
    """Sums over batches of passes, and the lags of all."""

    def __init__(self) -> None:
        self.lags: list[Int64s] = []
        self.read_ns = self.covered_by_reads_ns = self.covered_ns = 0
        self.tokens = self.tokens_once = 0

    def add(self, events: Events) -> None:
        """Add the events of whole passes."""
        self.covered_ns += covered_ns(events.start_ns, events.end_ns)
        reads = events.take(events.reads)
        if not len(reads):
            return
        self.covered_by_reads_ns += covered_ns(reads.start_ns, reads.end_ns)
        self.read_ns += int((reads.end_ns - reads.start_ns).sum())
        place = keys(reads.step, reads.layer, reads.request, reads.kv_head, reads.block_position)
        order = np.lexsort((reads.start_ns, keys(place, reads.kind, reads.worker)))
        reads, place = reads.take(order), place[order]
        self.lags.append(lags_ns(reads, place))
        of_kind = starts_of(place * 2 + reads.kind)
        self.tokens += int(reads.tokens.sum())
        self.tokens_once += int(np.maximum.reduceat(reads.tokens, of_kind).sum())

    def metrics(self, trace: KvTrace) -> dict[str, float]:
        """The metrics of all events added so far, by name."""
        lags = np.concatenate(self.lags) if self.lags else np.empty(0, np.int64)
        metrics = _percentiles("kv_lag", lags)
        if self.tokens_once:
            metrics["kv_read_amplification"] = self.tokens / self.tokens_once
        if trace.all_heads and self.covered_by_reads_ns:
            metrics["kv_read_parallelism"] = self.read_ns / self.covered_by_reads_ns
        return metrics


def _reuse_metrics(trace: KvTrace, bursts: Bursts) -> dict[str, float]:
    metrics = _percentiles("kv_burst", bursts.duration_ns) if trace.all_heads else {}
    if not trace.all_passes:
        return metrics
    reuses = reuses_of(bursts)
    if trace.all_heads:
        metrics |= _percentiles("kv_idle", reuses.idle_ns)
        metrics["kv_idle_share"] = _idle_share(bursts, reuses)
    if trace.all_layers and len(reuses.distance_blocks):
        median = float(np.median(reuses.distance_blocks))
        metrics["kv_reuse_distance_p50_blocks"] = median
        metrics["kv_reuse_distance_p50_bytes"] = median * trace.block_bytes
    return metrics


def _idle_share(bursts: Bursts, reuses: Reuses) -> float:
    idle, busy = float(reuses.idle_ns.sum()), float(bursts.duration_ns.sum())
    return idle / (idle + busy) if idle + busy else math.nan


def _percentiles(name: str, values: Int64s) -> dict[str, float]:
    """Median and 95th percentile, in s, of values in ns, by metric name; empty without values."""
    if not len(values):
        return {}
    percentiles = np.percentile(values, (50, 95)) * NANOSECOND
    return {f"{name}_p{q}_s": float(value) for q, value in zip((50, 95), percentiles, strict=True)}

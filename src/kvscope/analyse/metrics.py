"""The registry of metrics, and the metrics of throughput, latency, cache and stalls.

Metrics of resume overhead are in `overhead`, those of KV events in `access`.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any

import numpy as np
import pandas as pd

from kvscope.actions import keeps_tokens
from kvscope.analyse import access_metrics, offloading, overhead
from kvscope.analyse.metric import Metric, metric, plugin_metrics
from kvscope.analyse.records import Records
from kvscope.arraytypes import Floats
from kvscope.kv_use import token_share
from kvscope.passes import DECODE, MIXED, PREFILL
from kvscope.runfile import RECORDED


@metric("s", "Makespan", modeled_interval=True, better=-1, column=30)
def makespan_s(records: Records) -> float:
    """max(R.finished_s) − min(R.arrival_s), over all requests, aborted ones included. Without
    requests (an import): max(S.end_s)
    """
    requests = records.requests
    if requests.empty:
        return float((records.steps["start_s"] + records.steps["duration_s"]).max())
    return float(requests["finished_s"].max() - requests["arrival_s"].min())


# ------------------------------------------------------------------ throughput


@metric("tokens/s", "Throughput", modeled_interval=True, better=1, column=10, first=True)
def throughput_tokens_per_s(records: Records) -> float:
    """Σ(R.prompt_tokens + R.output_tokens) / makespan_s, over served requests; tokens of
    aborted requests do not count
    """
    tokens = _served_tokens(records, "prompt_tokens", "output_tokens")
    return _ratio(tokens, makespan_s(records))


@metric("tokens/s", "Throughput without stalls", modeled_interval=True, better=1, column=20)
def throughput_without_stalls_tokens_per_s(records: Records) -> float:
    """the same over makespan_s − stall_time_s"""
    tokens = _served_tokens(records, "prompt_tokens", "output_tokens")
    return _ratio(tokens, makespan_s(records) - stall_time_s(records))


@metric("tokens/s", "Output throughput", modeled_interval=True, better=1)
def output_throughput_tokens_per_s(records: Records) -> float:
    """ΣR.output_tokens / makespan_s, over served requests"""
    return _ratio(_served_tokens(records, "output_tokens"), makespan_s(records))


def _served_tokens(records: Records, *columns: str) -> float:
    """The sum of these columns over served requests; NaN if no requests were recorded."""
    if records.requests.empty:
        return math.nan
    return float(sum(records.served[column].sum() for column in columns))


def _of_phase(phase: str, tokens: str, heading: str) -> Metric:
    def of(records: Records) -> float:
        steps = records.steps[records.steps["phase"] == phase]
        return _ratio(float(steps[tokens].sum()), float(steps["duration_s"].sum()))

    formula = f"ΣS.{tokens} / ΣS.duration_s, over passes of phase `{phase}`"
    name = f"{phase}_throughput_tokens_per_s"
    return Metric(name, "tokens/s", heading, formula, of, modeled_interval=True, better=1)


# ------------------------------------------------------------------ latencies


def time_to_first_token_s(records: Records) -> Floats:
    """time to first token: R.first_token_s − R.arrival_s; mean and percentiles over served
    requests
    """
    requests = records.served
    return (requests["first_token_s"] - requests["arrival_s"]).to_numpy(float)


def inter_token_latency_s(records: Records) -> Floats:
    """inter-token latency: difference of the `end_s` of successive passes that sampled a token for
    a request (B.sampled_tokens > 0); over all such pairs of all served requests. A preemption
    between two tokens is included
    """
    gives = records.batch["sampled_tokens"] > 0
    served = records.batch["request_id"].isin(records.served["request_id"])
    given = records.batch.loc[gives & served, ["step", "request_id"]]
    steps = records.steps.set_index("step")
    ends = (steps["start_s"] + steps["duration_s"]).rename("end_s")
    times = given.join(ends, on="step").sort_values(["request_id", "step"])
    return times.groupby("request_id")["end_s"].diff().dropna().to_numpy(float)


def time_per_output_token_s(records: Records) -> Floats:
    """(R.finished_s − R.first_token_s) / (R.output_tokens − 1), over served requests with two
    output tokens or more
    """
    requests = records.served
    requests = requests[requests["output_tokens"] > 1]
    decoding_s = requests["finished_s"] - requests["first_token_s"]
    return (decoding_s / (requests["output_tokens"] - 1)).to_numpy(float)


def latency_s(records: Records) -> Floats:
    """R.finished_s − R.arrival_s, over served requests"""
    requests = records.served
    return (requests["finished_s"] - requests["arrival_s"]).to_numpy(float)


def _distribution(
    name: str,
    heading: str,
    values: Callable[[Records], Floats],
    modeled_interval: bool = False,
    columns: tuple[int, int] = (0, 0),
    first: bool = False,
    **display: Any,
) -> Iterator[Metric]:
    """Metrics of a quantity with many values a repeat: mean, median and 99th percentile.

    `columns` are those of the mean and of the percentile, `first` is of the mean. Less is better.
    """

    def of(statistic: Callable[[Floats], Any]) -> Callable[[Records], float]:
        return lambda records: float(statistic(v)) if len(v := values(records)) else math.nan

    formula = " ".join((values.__doc__ or "").split())
    common = partial(Metric, unit="s", formula=formula, better=-1, **display)
    yield common(
        name=f"{name}_mean_s",
        heading=f"{heading}, mean",
        of=of(np.mean),
        modeled_interval=modeled_interval,
        column=columns[0],
        first=first,
    )
    for q, word, column in ((50, "median", 0), (99, "p99", columns[1])):
        yield common(
            name=f"{name}_p{q}_s",
            heading=f"{heading}, {word}",
            of=of(partial(np.percentile, q=q)),
            column=column,
        )


# ------------------------------------------------------------------ passes and the cache


@metric("passes", "Forward passes", display="a repeat")
def forward_passes(records: Records) -> float:
    """rows of S"""
    return float(len(records.steps))


@metric("requests", "Requests in a pass, mean", column=165)
def pass_requests_mean(records: Records) -> float:
    """Σ(S.requests · S.duration_s) / ΣS.duration_s"""
    return _time_weighted(records.steps["requests"].astype(float), records.steps)


@metric("share", "KV use in blocks, mean", column=170, first=True)
def kv_block_utilization_mean(records: Records) -> float:
    """Σ(S.kv_blocks_used / S.kv_blocks_total · S.duration_s) / ΣS.duration_s"""
    steps = records.steps
    return _time_weighted(steps["kv_blocks_used"] / steps["kv_blocks_total"], steps)


@metric("share", "KV use in blocks, peak")
def kv_block_utilization_peak(records: Records) -> float:
    """max(S.kv_blocks_used / S.kv_blocks_total)"""
    return float((records.steps["kv_blocks_used"] / records.steps["kv_blocks_total"]).max())


@metric("B", "KV cache in use, peak", display="GiB")
def kv_bytes_peak(records: Records) -> float:
    """max(S.context_bytes), or where it is null max(S.kv_blocks_used) · engine.block_bytes of
    `run.json`
    """
    kept = records.steps["context_bytes"].astype(float)
    if kept.notna().all():
        return float(kept.max())
    return float(records.steps["kv_blocks_used"].max()) * records.block_bytes


@metric("share", "KV use in tokens, mean", column=180)
def kv_token_utilization_mean(records: Records) -> float:
    """Σ(S.kv_tokens_used / (S.kv_blocks_total · block size) · S.duration_s) / ΣS.duration_s; no
    value where KV groups differ
    """
    return _time_weighted(token_share(records.steps, records.block_size), records.steps)


@metric("share", "KV use in bytes, mean", optional=True, column=182)
def kv_byte_utilization_mean(records: Records) -> float:
    """Σ(S.kv_bytes_used / (S.kv_blocks_total · engine.block_bytes of `run.json`) · S.duration_s) /
    ΣS.duration_s; no value where one KV group keeps all tokens
    """
    steps = _of_groups(records)
    total = steps["kv_blocks_total"] * records.block_bytes
    return _time_weighted(steps["kv_bytes_used"].astype(float) / total, steps)


@metric("share", "Padding of KV blocks, mean", better=-1, optional=True, column=184)
def kv_padding_mean(records: Records) -> float:
    """Σ((1 − S.kv_bytes_used / (S.kv_blocks_used · engine.block_bytes)) · S.duration_s) /
    ΣS.duration_s; no value where one KV group keeps all tokens
    """
    steps = _of_groups(records)
    taken = steps["kv_blocks_used"] * records.block_bytes
    return _time_weighted(1 - steps["kv_bytes_used"].astype(float) / taken, steps)


@metric("B", "Bytes lost by a preemption, mean", display="MiB", optional=True, column=186)
def preempted_bytes_mean(records: Records) -> float:
    """mean of P.kv_bytes, over preemptions"""
    return float(records.preemptions["kv_bytes"].astype(float).mean())


def _of_groups(records: Records) -> pd.DataFrame:
    """The passes of a run whose KV groups differ."""
    steps = records.steps
    return steps[steps["group_blocks_used"].notna()]


@metric("share", "Host pool in use, peak")
def host_block_utilization_peak(records: Records) -> float:
    """max(S.host_blocks_used / S.host_blocks_total); no value without a pool"""
    pool = records.steps[records.steps["host_blocks_total"] > 0]
    return float((pool["host_blocks_used"] / pool["host_blocks_total"]).max())


def _time_weighted(share: pd.Series, steps: pd.DataFrame) -> float:
    """The mean of a share over passes, weighted by their durations."""
    duration = steps["duration_s"]
    return _ratio(float((share * duration).sum(skipna=False)), float(duration.sum()))


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.nan


# ------------------------------------------------------------------ preemptions, stalls


@metric("preemptions", "Preemptions", better=-1, display="a repeat", column=90, first=True)
def preemptions(records: Records) -> float:
    """rows of P with event `preempt`"""
    return float((records.preemptions["event"] == "preempt").sum())


@metric("preemptions", "Preemptions of one request, most", better=-1)
def most_preemptions(records: Records) -> float:
    """most rows of P with event `preempt` of one request; 0 without any"""
    rows = records.preemptions.query("event == 'preempt'")
    return float(rows["request_id"].value_counts().max()) if len(rows) else 0.0


@metric("tokens", "Recomputed tokens", better=-1, display="tokens a repeat", column=100)
def recomputed_tokens(records: Records) -> float:
    """ΣS.recomputed_tokens: tokens whose K and V were computed, lost, and computed again"""
    return float(records.steps["recomputed_tokens"].sum())


@metric("tokens", "Tokens lost by preemptions", better=-1, display="a repeat")
def lost_tokens(records: Records) -> float:
    """ΣP.tokens, over events `preempt` of actions that keep nothing: tokens that are computed again
    unless they are found
    """
    rows = records.preemptions
    return float(rows["tokens"][(rows["event"] == "preempt") & ~keeps_tokens(rows["policy"])].sum())


def _of_prefix_cache(function: Callable[[Records], float]) -> Callable[[Records], float]:
    """A metric that a run without a prefix cache does not define."""

    @wraps(function)
    def of(records: Records) -> float:
        recorded = records.facts.get(RECORDED, {}).get("prefix_caching")
        caches = recorded or "prefix_cache" in records.facts.get("engine", {})
        return function(records) if caches else math.nan

    return of


def _of_cached_blocks(function: Callable[[Records], float]) -> Callable[[Records], float]:
    """A metric of which blocks were found; recordings of several KV groups do not know them."""

    @_of_prefix_cache
    @wraps(function)
    def of(records: Records) -> float:
        known = records.batch["own_hit_tokens"].notna().any()
        return function(records) if known else math.nan

    return of


@metric("share", "Prefix cache hits", better=1, optional=True, column=104, first=True)
@_of_prefix_cache
def prefix_cache_hit_rate(records: Records) -> float:
    """ΣB.hit_tokens / Σ(B.hit_tokens + S.prefill_tokens): of the tokens of prompts and resumptions
    that are on the device, those found in the prefix cache; no value without one
    """
    hits = float(records.batch["hit_tokens"].sum())
    return _ratio(hits, hits + float(records.steps["prefill_tokens"].sum()))


@metric("tokens", "Own tokens found", better=1, optional=True, column=105, display="a repeat")
@_of_cached_blocks
def own_hit_tokens(records: Records) -> float:
    """ΣB.own_hit_tokens: tokens found in blocks that the request itself had computed and lost"""
    return float(records.batch["own_hit_tokens"].sum())


@metric("tokens", "Others' tokens found", better=1, optional=True, column=106, display="a repeat")
@_of_cached_blocks
def other_hit_tokens(records: Records) -> float:
    """Σ(B.hit_tokens − B.own_hit_tokens): tokens found in blocks that another request computed"""
    return float((records.batch["hit_tokens"] - records.batch["own_hit_tokens"]).sum())


@metric("share", "Lost tokens found again", better=1, optional=True, column=107)
@_of_prefix_cache
def lost_tokens_found_share(records: Records) -> float:
    """Σmin(P.hit_tokens, P.tokens) / ΣP.tokens, over events `resume` of actions that keep nothing:
    of the tokens that preempted requests had lost, those found in the prefix cache on resumption
    """
    rows = records.preemptions
    rows = rows[(rows["event"] == "resume") & ~keeps_tokens(rows["policy"])]
    found = np.minimum(rows["hit_tokens"].astype(float), rows["tokens"])
    return _ratio(float(found.sum()), float(rows["tokens"].sum()))


@metric("blocks", "Evictions from the prefix cache", better=-1, optional=True, display="a repeat")
@_of_cached_blocks
def prefix_cache_evictions(records: Records) -> float:
    """rows of `evictions`: cached blocks that were given to requests with other tokens"""
    return float(len(records.evictions))


@metric("s", "Wait of a preempted request, mean", better=-1)
def preemption_wait_mean_s(records: Records) -> float:
    """mean of P.wait_s: from a preemption to the schedule that resumes the request"""
    return float(records.preemptions.query("event == 'resume'")["wait_s"].astype(float).mean())


@metric("s", "Wait of a preempted request, longest", better=-1)
def preemption_wait_longest_s(records: Records) -> float:
    """greatest ΣP.wait_s of one request: all of its waits to resume, which is its starvation"""
    rows = records.preemptions.query("event == 'resume'")
    waits = rows["wait_s"].astype(float).groupby(rows["request_id"]).sum(min_count=1)
    return float(waits.max())


@metric("share", "Drafts accepted", better=1, optional=True, column=108)
def draft_acceptance_rate(records: Records) -> float:
    """ΣB.accepted_tokens / ΣB.draft_tokens: of the tokens that speculative decoding guessed, those
    that the model would have given; no value without it
    """
    return _ratio(
        float(records.batch["accepted_tokens"].sum()), float(records.batch["draft_tokens"].sum())
    )


@metric("requests", "Aborted requests", better=-1, display="a repeat", optional=True, column=110)
def aborted_requests(records: Records) -> float:
    """rows of R with `aborted`"""
    return float(records.requests["aborted"].sum())


@metric("passes", "Stalled passes", better=-1)
def stalled_passes(records: Records) -> float:
    """rows of S with `stalled`"""
    return float(records.steps["stalled"].sum())


@metric("s", "Time lost in stalls", better=-1)
def stall_time_s(records: Records) -> float:
    """Σ(S.duration_s − median duration of the pass's kind) over stalled passes; the median is over
    all repeats, as for the flag, see below
    """
    stalled = records.steps.loc[records.steps["stalled"].astype(bool), "duration_s"]
    if stalled.empty:
        return 0.0
    return float((stalled - records.pass_durations.usual_s.loc[stalled.index]).sum())


OWN: tuple[Metric, ...] = (
    makespan_s,
    throughput_tokens_per_s,
    throughput_without_stalls_tokens_per_s,
    output_throughput_tokens_per_s,
    _of_phase(PREFILL, "prefill_tokens", "Prefill throughput"),
    _of_phase(DECODE, "decode_tokens", "Decode throughput"),
    _of_phase(MIXED, "scheduled_tokens", "Throughput of mixed passes"),
    *_distribution(
        *("ttft", "TTFT", time_to_first_token_s),
        modeled_interval=True,
        columns=(120, 130),
        first=True,
    ),
    *_distribution("itl", "ITL", inter_token_latency_s, columns=(140, 150), display="ms"),
    *_distribution(
        *("tpot", "TPOT", time_per_output_token_s),
        columns=(160, 0),
        first=True,
        display="ms",
        optional=True,
    ),
    *_distribution("latency", "Latency", latency_s, modeled_interval=True),
    forward_passes,
    pass_requests_mean,
    kv_block_utilization_mean,
    kv_block_utilization_peak,
    kv_bytes_peak,
    kv_token_utilization_mean,
    kv_byte_utilization_mean,
    kv_padding_mean,
    preempted_bytes_mean,
    preemptions,
    recomputed_tokens,
    lost_tokens,
    prefix_cache_hit_rate,
    own_hit_tokens,
    other_hit_tokens,
    lost_tokens_found_share,
    prefix_cache_evictions,
    most_preemptions,
    preemption_wait_mean_s,
    preemption_wait_longest_s,
    overhead.resume_overhead_gross_s,
    overhead.resume_overhead_as_published_s,
    overhead.resume_overhead_net_s,
    overhead.resume_overhead_net_control_s,
    overhead.resume_overhead_net_uncertainty_s,
    overhead.swap_out_s,
    overhead.swap_in_s,
    overhead.rebuild_s,
    overhead.save_s,
    overhead.swapped_bytes,
    host_block_utilization_peak,
    overhead.recompute_fallbacks,
    *offloading.METRICS,
    draft_acceptance_rate,
    aborted_requests,
    stalled_passes,
    stall_time_s,
    *access_metrics.METRICS,
)
METRICS = (*OWN, *plugin_metrics())

BY_NAME: dict[str, Metric] = {metric.name: metric for metric in METRICS}

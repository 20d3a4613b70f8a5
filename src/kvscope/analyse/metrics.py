"""The registry of metrics, and those of throughput, latency, cache and stalls.

What resuming costs is in `overhead`, how kernels access the cache in `access`.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd

from kvscope.analyse import access, overhead
from kvscope.analyse.metric import Metric, registered
from kvscope.analyse.records import Records
from kvscope.arraytypes import Floats
from kvscope.passes import DECODE, MIXED, PREFILL


def makespan_s(records: Records) -> float:
    """From the first arrival to the last token, or to when the last request was aborted.

    Published passes come without requests: there, to the end of the last pass.
    """
    requests = records.requests
    if requests.empty:
        return float((records.steps["start_s"] + records.steps["duration_s"]).max())
    return float(requests["finished_s"].max() - requests["arrival_s"].min())


def stall_time_s(records: Records) -> float:
    """What stalled passes took beyond the median of their kind in all repeats of the run."""
    stalled = records.steps.loc[records.steps["stalled"].astype(bool), "duration_s"]
    return float((stalled - records.baseline.usual_s.loc[stalled.index]).sum())


def time_to_first_token_s(records: Records) -> Floats:
    """Of each request served: from its arrival to the end of the pass of its first token."""
    requests = records.served
    return (requests["first_token_s"] - requests["arrival_s"]).to_numpy(float)


def latency_s(records: Records) -> Floats:
    """Of each request served: from its arrival to its last token."""
    requests = records.served
    return (requests["finished_s"] - requests["arrival_s"]).to_numpy(float)


def inter_token_latency_s(records: Records) -> Floats:
    """Of each output token but a served request's first: time since its token before."""
    gives = records.batch["sampled_tokens"] > 0
    served = records.batch["request_id"].isin(records.served["request_id"])
    given = records.batch.loc[gives & served, ["step", "request_id"]]
    steps = records.steps.set_index("step")
    ends = (steps["start_s"] + steps["duration_s"]).rename("end_s")
    times = given.join(ends, on="step").sort_values(["request_id", "step"])
    return times.groupby("request_id")["end_s"].diff().dropna().to_numpy(float)


def phase_throughput(phase: str, column: str) -> Callable[[Records], float]:
    """Tokens of `column` over the time of the passes of one phase."""

    def of(records: Records) -> float:
        steps = records.steps[records.steps["phase"] == phase]
        return _ratio(float(steps[column].sum()), float(steps["duration_s"].sum()))

    return of


def time_weighted(
    column: str, capacity: Callable[[Records], pd.Series]
) -> Callable[[Records], float]:
    """Mean of column / capacity over passes, weighted by their durations."""

    def of(records: Records) -> float:
        share = records.steps[column] / capacity(records)
        duration = records.steps["duration_s"]
        return _ratio(float((share * duration).sum(skipna=False)), float(duration.sum()))

    return of


def blocks(records: Records) -> pd.Series:
    """Blocks that requests can use, at every pass."""
    return records.steps["kv_blocks_total"]


def block_tokens(records: Records) -> pd.Series:
    """Tokens that fit into those blocks, at every pass."""
    return records.steps["kv_blocks_total"] * records.block_size


def percentile(of: Callable[[Records], Floats], q: float) -> Callable[[Records], float]:
    """The q-th percentile of a metric that has many values."""
    return lambda records: float(np.percentile(v, q)) if len(v := of(records)) else math.nan


def mean(of: Callable[[Records], Floats]) -> Callable[[Records], float]:
    """The mean of a metric that has many values."""
    return lambda records: float(v.mean()) if len(v := of(records)) else math.nan


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.nan


def served_tokens(records: Records, *columns: str) -> float:
    """Tokens of the requests served to their end; NaN where no requests were recorded.

    An aborted request got no answer: its tokens are work, not throughput.
    """
    return float(records.served[list(columns)].sum().sum()) if len(records.requests) else math.nan


def _throughput(records: Records) -> float:
    return _ratio(served_tokens(records, "prompt_tokens", "output_tokens"), makespan_s(records))


def _throughput_without_stalls(records: Records) -> float:
    unstalled = makespan_s(records) - stall_time_s(records)
    return _ratio(served_tokens(records, "prompt_tokens", "output_tokens"), unstalled)


def _output_throughput(records: Records) -> float:
    return _ratio(served_tokens(records, "output_tokens"), makespan_s(records))


def _resumptions(records: Records) -> pd.DataFrame:
    return records.preemptions[records.preemptions["event"] == "resume"]


def _peak_blocks(records: Records) -> float:
    return float((records.steps["kv_blocks_used"] / blocks(records)).max())


def _host_blocks_peak(records: Records) -> float:
    pool = records.steps[records.steps["host_blocks_total"] > 0]
    return float((pool["host_blocks_used"] / pool["host_blocks_total"]).max())


def _latencies(
    name: str, heading: str, formula: str, of: Callable[[Records], Floats]
) -> Iterator[Metric]:
    yield Metric(f"{name}_mean_s", "s", f"{heading}, mean", formula, mean(of))
    for q, word in ((50, "median"), (99, "p99")):
        yield Metric(f"{name}_p{q}_s", "s", f"{heading}, {word}", formula, percentile(of, q))


SERVED = "over served requests"

OWN: tuple[Metric, ...] = (
    Metric(
        "makespan_s",
        "s",
        "Makespan",
        "max(R.finished_s) − min(R.arrival_s), of all requests: the time of an aborted one is time "
        "spent. Without requests (an import): max(S.end_s)",
        makespan_s,
    ),
    Metric(
        "throughput_tokens_per_s",
        "tokens/s",
        "Throughput",
        f"Σ(R.prompt_tokens + R.output_tokens) / makespan_s, {SERVED}: an aborted one got no "
        "answer, so its tokens are work and not throughput",
        _throughput,
    ),
    Metric(
        "throughput_without_stalls_tokens_per_s",
        "tokens/s",
        "Throughput without stalls",
        "the same over makespan_s − stall_time_s",
        _throughput_without_stalls,
    ),
    Metric(
        "output_throughput_tokens_per_s",
        "tokens/s",
        "Output throughput",
        f"ΣR.output_tokens / makespan_s, {SERVED}",
        _output_throughput,
    ),
    Metric(
        "prefill_throughput_tokens_per_s",
        "tokens/s",
        "Prefill throughput",
        "ΣS.prefill_tokens / ΣS.duration_s, over passes of phase `prefill`",
        phase_throughput(PREFILL, "prefill_tokens"),
    ),
    Metric(
        "decode_throughput_tokens_per_s",
        "tokens/s",
        "Decode throughput",
        "ΣS.decode_tokens / ΣS.duration_s, over passes of phase `decode`",
        phase_throughput(DECODE, "decode_tokens"),
    ),
    Metric(
        "mixed_throughput_tokens_per_s",
        "tokens/s",
        "Throughput of mixed passes",
        "ΣS.scheduled_tokens / ΣS.duration_s, over passes of phase `mixed`",
        phase_throughput(MIXED, "scheduled_tokens"),
    ),
    *_latencies(
        "ttft",
        "TTFT",
        "time to first token: R.first_token_s − R.arrival_s; mean and percentiles " + SERVED,
        time_to_first_token_s,
    ),
    *_latencies(
        "itl",
        "ITL",
        "inter-token latency: difference of the `end_s` of successive passes that gave a request a "
        "token (B.sampled_tokens > 0); over all such pairs of all served requests. A preemption "
        "between two tokens counts",
        inter_token_latency_s,
    ),
    *_latencies("latency", "Latency", f"R.finished_s − R.arrival_s, {SERVED}", latency_s),
    Metric(
        "forward_passes",
        "passes",
        "Forward passes",
        "rows of S",
        lambda r: float(len(r.steps)),
    ),
    Metric(
        "kv_block_utilization_mean",
        "share",
        "KV use in blocks, mean",
        "Σ(S.kv_blocks_used / S.kv_blocks_total · S.duration_s) / ΣS.duration_s",
        time_weighted("kv_blocks_used", blocks),
    ),
    Metric(
        "kv_block_utilization_peak",
        "share",
        "KV use in blocks, peak",
        "max(S.kv_blocks_used / S.kv_blocks_total)",
        _peak_blocks,
    ),
    Metric(
        "kv_token_utilization_mean",
        "share",
        "KV use in tokens, mean",
        "Σ(S.kv_tokens_used / (S.kv_blocks_total · block size) · S.duration_s) / ΣS.duration_s",
        time_weighted("kv_tokens_used", block_tokens),
    ),
    Metric(
        "preemptions",
        "preemptions",
        "Preemptions",
        "rows of P with event `preempt`",
        lambda r: float((r.preemptions["event"] == "preempt").sum()),
    ),
    Metric(
        "recomputed_tokens",
        "tokens",
        "Recomputed tokens",
        "ΣS.recomputed_tokens: tokens whose K and V were computed, lost, and computed again",
        lambda r: float(r.steps["recomputed_tokens"].sum()),
    ),
    Metric(
        "preemption_wait_mean_s",
        "s",
        "Wait of a preempted request, mean",
        "mean of P.wait_s: from a preemption to the schedule that resumes the request",
        lambda r: float(_resumptions(r)["wait_s"].mean()) if len(_resumptions(r)) else math.nan,
    ),
    *overhead.METRICS,
    Metric(
        "host_block_utilization_peak",
        "share",
        "Host pool in use, peak",
        "max(S.host_blocks_used / S.host_blocks_total); no value without a pool",
        _host_blocks_peak,
    ),
    Metric(
        "recompute_fallbacks",
        "preemptions",
        "Preemptions recomputed for want of host room",
        "rows of P with event `preempt` and `refused`: the host pool had no room for them",
        overhead.recompute_fallbacks,
    ),
    Metric(
        "aborted_requests",
        "requests",
        "Aborted requests",
        "rows of R with `aborted`",
        lambda r: float(r.requests["aborted"].sum()),
    ),
    Metric(
        "stalled_passes",
        "passes",
        "Stalled passes",
        "rows of S with `stalled`",
        lambda r: float(r.steps["stalled"].sum()),
    ),
    Metric(
        "stall_time_s",
        "s",
        "Time lost in stalls",
        "Σ(S.duration_s − median duration of the pass's kind) over stalled passes; the median is "
        "over all repeats, as for [the flag](#shape-classes-stalls-warm-up)",
        stall_time_s,
    ),
    *access.METRICS,
)
METRICS = (*OWN, *registered())

BY_NAME: dict[str, Metric] = {metric.name: metric for metric in METRICS}

"""The metrics: name, unit, and a function from the records of one repeat to a number.

docs/METRICS.md gives each one's formula over table columns. A metric that a repeat does not
define (decode throughput of a run that never decodes) is NaN.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from kvscope.analyse import overhead
from kvscope.analyse.access import ACCESS_METRICS
from kvscope.analyse.records import Records

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Metric:
    """A named number of one repeat; and how uncertain each is, where the method tells."""

    name: str
    unit: str
    title: str
    of: Callable[[Records], float]
    uncertainty: Callable[[Records], float] | None = None


def makespan_s(records: Records) -> float:
    """From the first arrival to the last token, or to when the last request was given up.

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


def time_per_output_token_s(records: Records) -> Floats:
    """Of each request served with two output tokens or more: mean time from one to the next."""
    requests = records.served
    requests = requests[requests["output_tokens"] > 1]
    decoding_s = requests["finished_s"] - requests["first_token_s"]
    return (decoding_s / (requests["output_tokens"] - 1)).to_numpy(float)


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

    A request that was given up got no answer: its tokens are work, not throughput.
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


def _latencies(name: str, title: str, of: Callable[[Records], Floats]) -> Iterator[Metric]:
    yield Metric(f"{name}_mean_s", "s", f"{title}, mean", mean(of))
    for q in (50, 99):
        yield Metric(f"{name}_p{q}_s", "s", f"{title}, {q}th percentile", percentile(of, q))


def _access(name: str) -> Callable[[Records], float]:
    return lambda r: r.trace.metric(name, r.steps) if r.trace else math.nan


METRICS: tuple[Metric, ...] = (
    Metric("makespan_s", "s", "Makespan", makespan_s),
    Metric("throughput_tokens_per_s", "tokens/s", "Throughput", _throughput),
    Metric(
        "throughput_without_stalls_tokens_per_s",
        "tokens/s",
        "Throughput without stalls",
        _throughput_without_stalls,
    ),
    Metric("output_throughput_tokens_per_s", "tokens/s", "Output throughput", _output_throughput),
    Metric(
        "prefill_throughput_tokens_per_s",
        "tokens/s",
        "Prefill throughput",
        phase_throughput("prefill", "prefill_tokens"),
    ),
    Metric(
        "decode_throughput_tokens_per_s",
        "tokens/s",
        "Decode throughput",
        phase_throughput("decode", "decode_tokens"),
    ),
    Metric(
        "mixed_throughput_tokens_per_s",
        "tokens/s",
        "Throughput of mixed passes",
        phase_throughput("mixed", "scheduled_tokens"),
    ),
    *_latencies("ttft", "Time to first token", time_to_first_token_s),
    *_latencies("itl", "Inter-token latency", inter_token_latency_s),
    *_latencies("tpot", "Time per output token", time_per_output_token_s),
    *_latencies("latency", "Request latency", latency_s),
    Metric("forward_passes", "passes", "Forward passes", lambda r: float(len(r.steps))),
    Metric(
        "kv_block_utilization_mean",
        "share",
        "KV utilization in blocks, mean",
        time_weighted("kv_blocks_used", blocks),
    ),
    Metric("kv_block_utilization_peak", "share", "KV utilization in blocks, peak", _peak_blocks),
    Metric(
        "kv_token_utilization_mean",
        "share",
        "KV utilization in tokens, mean",
        time_weighted("kv_tokens_used", block_tokens),
    ),
    Metric(
        "preemptions",
        "preemptions",
        "Preemptions",
        lambda r: float((r.preemptions["event"] == "preempt").sum()),
    ),
    Metric(
        "recomputed_tokens",
        "tokens",
        "Recomputed tokens",
        lambda r: float(r.steps["recomputed_tokens"].sum()),
    ),
    Metric(
        "preemption_wait_mean_s",
        "s",
        "Wait from preemption to resumption, mean",
        lambda r: float(_resumptions(r)["wait_s"].mean()) if len(_resumptions(r)) else math.nan,
    ),
    Metric(
        "resume_overhead_paper_s",
        "s",
        "Resume overhead, the paper's",
        overhead.resume_overhead_paper_s,
    ),
    Metric(
        "resume_overhead_net_s",
        "s",
        "Resume overhead, net",
        overhead.resume_overhead_net_s,
        overhead.resume_overhead_net_uncertainty_s,
    ),
    Metric(
        "resume_overhead_net_control_s",
        "s",
        "Resume overhead, net, where nothing resumes",
        overhead.resume_overhead_net_control_s,
    ),
    Metric(
        "resume_overhead_net_uncertainty_s",
        "s",
        "Resume overhead, net, uncertainty",
        overhead.resume_overhead_net_uncertainty_s,
    ),
    Metric("swap_out_s", "s", "Swap out", overhead.swap_out_s),
    Metric("swap_in_s", "s", "Swap in", overhead.swap_in_s),
    Metric("swapped_bytes", "B", "Bytes swapped, out and in", overhead.swapped_bytes),
    Metric(
        "host_block_utilization_peak",
        "share",
        "Host pool utilization, peak",
        overhead.host_block_utilization_peak,
    ),
    Metric(
        "recompute_fallbacks",
        "preemptions",
        "Preemptions recomputed for want of host room",
        overhead.recompute_fallbacks,
    ),
    Metric(
        "aborted_requests",
        "requests",
        "Aborted requests",
        lambda r: float(r.requests["aborted"].sum()),
    ),
    Metric("stalled_passes", "passes", "Stalled passes", lambda r: float(r.steps["stalled"].sum())),
    Metric("stall_time_s", "s", "Time lost in stalls", stall_time_s),
    *(Metric(name, unit, title, _access(name)) for name, unit, title in ACCESS_METRICS),
)

BY_NAME: dict[str, Metric] = {metric.name: metric for metric in METRICS}

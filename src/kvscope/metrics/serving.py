"""Metrics of throughput, latency and stalls."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from kvscope.base.arraytypes import Floats
from kvscope.metrics.metric import Metric, metric, ratio
from kvscope.tables.run_view import RunView


@metric("s", "Makespan", modeled_interval=True, better=-1, column=30)
def makespan_s(records: RunView) -> float:
    """max(R.finished_s) − min(R.arrival_s), over all requests, aborted ones included. Without
    requests (an import): max(S.end_s)
    """
    requests = records.requests
    if requests.empty:
        return float((records.steps["start_s"] + records.steps["duration_s"]).max())
    return float(requests["finished_s"].max() - requests["arrival_s"].min())


# ------------------------------------------------------------------ throughput


@metric("tokens/s", "Throughput", modeled_interval=True, better=1, column=10, first=True)
def throughput_tokens_per_s(records: RunView) -> float:
    """Σ(R.prompt_tokens + R.output_tokens) / makespan_s, over served requests; tokens of
    aborted requests do not count
    """
    tokens = _served_tokens(records, "prompt_tokens", "output_tokens")
    return ratio(tokens, makespan_s(records))


@metric("tokens/s", "Throughput without stalls", modeled_interval=True, better=1, column=20)
def throughput_without_stalls_tokens_per_s(records: RunView) -> float:
    """the same over makespan_s − stall_time_s"""
    tokens = _served_tokens(records, "prompt_tokens", "output_tokens")
    return ratio(tokens, makespan_s(records) - stall_time_s(records))


@metric("tokens/s", "Output throughput", modeled_interval=True, better=1)
def output_throughput_tokens_per_s(records: RunView) -> float:
    """ΣR.output_tokens / makespan_s, over served requests"""
    return ratio(_served_tokens(records, "output_tokens"), makespan_s(records))


def _served_tokens(records: RunView, *columns: str) -> float:
    """The sum of these columns over served requests; NaN if no requests were recorded."""
    if records.requests.empty:
        return math.nan
    return float(sum(records.served[column].sum() for column in columns))


def of_phase(phase: str, tokens: str, heading: str) -> Metric:
    """The throughput of the passes of a phase, by their column `tokens`."""

    def of(records: RunView) -> float:
        steps = records.steps[records.steps["phase"] == phase]
        return ratio(float(steps[tokens].sum()), float(steps["duration_s"].sum()))

    formula = f"ΣS.{tokens} / ΣS.duration_s, over passes of phase `{phase}`"
    name = f"{phase}_throughput_tokens_per_s"
    return Metric(name, "tokens/s", heading, formula, of, modeled_interval=True, better=1)


# ------------------------------------------------------------------ latencies


def time_to_first_token_s(records: RunView) -> Floats:
    """time to first token: R.first_token_s − R.arrival_s; mean and percentiles over served
    requests
    """
    requests = records.served
    return (requests["first_token_s"] - requests["arrival_s"]).to_numpy(float)


def inter_token_latency_s(records: RunView) -> Floats:
    """inter-token latency: difference of the `end_s` of successive passes that sampled a token for
    a request (B.sampled_tokens > 0); over all such pairs of all served requests. A preemption
    between two tokens is included
    """
    gives = records.batch["sampled_tokens"] > 0
    served = records.batch["request_id"].isin(records.served["request_id"])
    samples = records.batch.loc[gives & served, ["step", "request_id"]]
    steps = records.steps.set_index("step")
    ends = (steps["start_s"] + steps["duration_s"]).rename("end_s")
    times = samples.join(ends, on="step").sort_values(["request_id", "step"])
    return times.groupby("request_id")["end_s"].diff().dropna().to_numpy(float)


def time_per_output_token_s(records: RunView) -> Floats:
    """(R.finished_s − R.first_token_s) / (R.output_tokens − 1), over served requests with two
    output tokens or more
    """
    requests = records.served
    requests = requests[requests["output_tokens"] > 1]
    decoding_s = requests["finished_s"] - requests["first_token_s"]
    return (decoding_s / (requests["output_tokens"] - 1)).to_numpy(float)


def latency_s(records: RunView) -> Floats:
    """R.finished_s − R.arrival_s, over served requests"""
    requests = records.served
    return (requests["finished_s"] - requests["arrival_s"]).to_numpy(float)


def distribution(
    name: str,
    heading: str,
    values: Callable[[RunView], Floats],
    modeled_interval: bool = False,
    columns: tuple[int, int] = (0, 0),
    first: bool = False,
    **display: Any,
) -> Iterator[Metric]:
    """Metrics of a quantity with many values a repeat: mean, median and 99th percentile.

    `columns` are those of the mean and of the percentile, `first` is of the mean. Less is better.
    """

    def of(statistic: Callable[[Floats], Any]) -> Callable[[RunView], float]:
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


# ------------------------------------------------------------------ stalls


@metric("passes", "Stalled passes", better=-1)
def stalled_passes(records: RunView) -> float:
    """rows of S with `stalled`"""
    return float(records.steps["stalled"].sum())


@metric("s", "Time lost in stalls", better=-1)
def stall_time_s(records: RunView) -> float:
    """Σ(S.duration_s − median duration of the pass's kind) over stalled passes; the median is over
    all repeats, as for the flag, see below
    """
    stalled = records.steps.loc[records.steps["stalled"].astype(bool), "duration_s"]
    if stalled.empty:
        return 0.0
    return float((stalled - records.pass_durations.usual_s.loc[stalled.index]).sum())

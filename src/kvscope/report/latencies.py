"""Latencies of the requests of an experiment."""

from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True)
class Latencies:
    """Latencies of the served requests of all repeats, in seconds, and the sum of the makespans.

    `tpot_s` is NaN for a request with one output token.
    """

    ttft_s: pd.Series
    tpot_s: pd.Series
    latency_s: pd.Series
    makespan_s: float


def latencies_of(requests: pd.DataFrame) -> Latencies:
    """Latencies of a `requests` table; docs/METRICS.md has the formulas."""
    served = requests[~requests["aborted"].astype(bool)].dropna(subset="first_token_s")
    ends = requests.groupby("repeat").agg(first=("arrival_s", "min"), last=("finished_s", "max"))
    after_first = (served["output_tokens"] - 1).where(served["output_tokens"] > 1)
    return Latencies(
        served["first_token_s"] - served["arrival_s"],
        (served["finished_s"] - served["first_token_s"]) / after_first,
        served["finished_s"] - served["arrival_s"],
        float((ends["last"] - ends["first"]).sum()),
    )

"""The throughput of one repeat, by which the repeats of a run are ended."""

import math

import pandas as pd


def throughput_tokens_per_s(requests: pd.DataFrame) -> float:
    """Prompt and output tokens of the requests served over the makespan, of a `requests` table.

    The metric of this name, for `plan.repeats.StoppingRule`.
    """
    served = requests[~requests["aborted"].astype(bool)]
    tokens = float(served[["prompt_tokens", "output_tokens"]].sum().sum())
    makespan_s = float(requests["finished_s"].max() - requests["arrival_s"].min())
    return tokens / makespan_s if makespan_s else math.nan

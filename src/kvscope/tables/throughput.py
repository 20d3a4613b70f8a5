"""The throughput of one repeat, for the stopping rule of a run."""

import math

import pandas as pd


def throughput_tokens_per_s(requests: pd.DataFrame) -> float:
    """Prompt and output tokens of the completed requests divided by the makespan.

    `requests` is the table of one repeat. The value is that of the metric of this name; it is used
    by `plan.repeats.StoppingRule`.
    """
    served = requests[~requests["aborted"].astype(bool)]
    tokens = float(served[["prompt_tokens", "output_tokens"]].sum().sum())
    makespan_s = float(requests["finished_s"].max() - requests["arrival_s"].min())
    return tokens / makespan_s if makespan_s else math.nan

"""What preemptions cost: the paper's measure, the net one, and the parts they are made of.

docs/METRICS.md gives the formulas and says why the two measures differ. Each function takes the
records of one repeat; seconds, unless it says otherwise.
"""

import math

import numpy as np
import numpy.typing as npt
import pandas as pd

from kvscope.analyse.records import Records
from kvscope.due import decode_due_s

Floats = npt.NDArray[np.float64]


def resume_overhead_paper_s(records: Records) -> float:
    """Whole duration of the passes that resume a request, plus the copies to the host."""
    return float(_resuming(records)["duration_s"].sum()) + swap_out_s(records)


def resume_overhead_net_s(records: Records) -> float:
    """What preemptions added: the copies, and what resuming took beyond the work that was due."""
    return float(net_of_resuming(records).sum()) + swap_out_s(records)


def net_of_resuming(records: Records) -> Floats:
    """Of each pass that resumes a request: seconds that it took because of that.

    A pass that prefills shares what is neither copy nor due decode by tokens: recomputed ones
    against new prompts and newest tokens, which were due anyway. One that only decodes owes all
    that is beyond its due.
    """
    steps = records.steps
    passes = _resuming(records)
    duration = passes["duration_s"].to_numpy(np.float64)
    prefill = passes["prefill_tokens"].to_numpy(np.float64)
    due = decode_due_s(steps, (steps["resumed_requests"] > 0).to_numpy(dtype=bool))
    copied = _copied_in(records, passes["step"])
    share = passes["recomputed_tokens"].to_numpy(np.float64) / np.maximum(prefill, 1)
    return np.where(prefill > 0, copied + (duration - copied - due) * share, duration - due)


def swap_out_s(records: Records) -> float:
    """Device time of the copies to the host."""
    return _total(_swapped(records, "preempt"), "swap_out_s")


def swap_in_s(records: Records) -> float:
    """Device time of the copies back."""
    return _total(_swapped(records, "resume"), "swap_in_s")


def swapped_bytes(records: Records) -> float:
    """Bytes copied to the host and back."""
    return _total(records.preemptions, "bytes")


def host_block_utilization_peak(records: Records) -> float:
    """The largest share of the host pool in use; NaN without a pool."""
    pool = records.steps[records.steps["host_blocks_total"] > 0]
    return float((pool["host_blocks_used"] / pool["host_blocks_total"]).max())


def recompute_fallbacks(records: Records) -> float:
    """Preemptions that a full host pool turned into recomputation."""
    rows = records.preemptions
    return float(((rows["event"] == "preempt") & rows["refused"].astype(bool)).sum())


def _resuming(records: Records) -> pd.DataFrame:
    return records.steps[records.steps["resumed_requests"] > 0]


def _swapped(records: Records, event: str) -> pd.DataFrame:
    rows = records.preemptions
    return rows[(rows["event"] == event) & (rows["policy"] == "swap")]


def _total(rows: pd.DataFrame, column: str) -> float:
    """The sum, NaN if a row does not know its part: an unknown copy is not one of no cost."""
    return math.fsum(rows[column].astype(float))


def _copied_in(records: Records, steps: pd.Series) -> Floats:
    """Of each pass: seconds of the copies back in it, 0 without any."""
    copies = _swapped(records, "resume").groupby("step")["swap_in_s"].sum()
    return copies.reindex(steps, fill_value=0.0).to_numpy(np.float64)

"""What preemptions cost: the paper's measure, the net one, and the parts they are made of.

docs/METRICS.md says why the two measures differ. Each function takes the
records of one repeat; seconds, unless it says otherwise.
"""

import math

import numpy as np
import pandas as pd
from scipy.spatial import KDTree

from kvscope.actions import copies_blocks
from kvscope.analyse.metric import metric
from kvscope.analyse.records import Records
from kvscope.arraytypes import Floats
from kvscope.due import plain_decode

# Plain decode passes that stand for one that resumes.
TWINS = 10
# 95 % of normal errors lie within so many standard deviations.
NORMAL_95 = 1.96


@metric("s", "Resume overhead, the paper's")
def resume_overhead_paper_s(records: Records) -> float:
    """Σ(S.duration_s over passes with resumed_requests > 0) + swap_out_s. Source: the
    post-processing of logs in the paper's artifact
    """
    return float(_resuming(records)["duration_s"].sum()) + swap_out_s(records)


def net_of_resuming(records: Records) -> Floats:
    """Of each pass that resumes a request: seconds that it took because of that.

    What is neither copy nor due decode is owed in parts: see `_owed`.
    """
    passes = _resuming(records)
    if passes.empty:
        return np.zeros(0)
    duration = passes["duration_s"].to_numpy(np.float64)
    due = records.baseline.due_s.loc[passes.index].to_numpy(np.float64)
    copied = _copied_in(records, passes["step"])
    net: Floats = copied + (duration - copied - due) * _owed(passes)
    return net


@metric("s", "Net, where nothing resumes")
def resume_overhead_net_control_s(records: Records) -> float:
    """what the net measure gives for passes that resume nothing: its error; see below

    In the place of every resuming pass stand the TWINS plain decode passes of its repeat that are
    nearest in requests and context, each over its standard deviation; their mean is what counts.
    What was due in them is told by others, and they owe the same part.
    """
    passes = _decoding(_resuming(records))
    if passes.empty:
        return 0.0
    errors = control_errors_s(records)
    if errors.empty:
        return math.nan
    decoding = records.baseline.decoding
    spread = decoding.loc[errors.index].std(ddof=0).replace(0, 1)
    twins = min(TWINS, len(errors))
    tree = KDTree(decoding.loc[errors.index] / spread)
    _, nearest = tree.query(decoding.loc[passes.index] / spread, k=range(1, twins + 1))
    return float((errors.to_numpy()[nearest].mean(axis=1) * _owed(passes)).sum())


@metric("s", "Net, uncertainty")
def resume_overhead_net_uncertainty_s(records: Records) -> float:
    """max(|resume_overhead_net_control_s|, 1.96 · e · √Σ owed²), e the root mean square error of
    plain decode passes; see below

    By chance errors add up as those of independent passes do, each as large as those of the
    repeat's plain decode passes.
    """
    passes = _decoding(_resuming(records))
    if passes.empty:
        return 0.0
    of_one = math.sqrt((control_errors_s(records) ** 2).mean())
    chance = NORMAL_95 * of_one * math.sqrt((_owed(passes) ** 2).sum())
    return max(chance, abs(resume_overhead_net_control_s(records)))


@metric("s", "Resume overhead, net", uncertainty=resume_overhead_net_uncertainty_s)
def resume_overhead_net_s(records: Records) -> float:
    """Σ(net over passes with resumed_requests > 0) + swap_out_s; see below. Source: kvscope"""
    return float(net_of_resuming(records).sum()) + swap_out_s(records)


def control_errors_s(records: Records) -> pd.Series:
    """Of each plain decode pass: seconds beyond what others tell was due in it."""
    plain = records.steps[plain_decode(records.steps)]
    due = records.baseline.held_out_due_s.loc[plain.index]
    return (plain["duration_s"] - due).astype(float).dropna()


@metric("s", "Swap out")
def swap_out_s(records: Records) -> float:
    """ΣP.swap_out_s over preemptions by `swap`: device time of the copies to the host"""
    return _total(_swapped(records, "preempt"), "swap_out_s")


@metric("s", "Swap in")
def swap_in_s(records: Records) -> float:
    """ΣP.swap_in_s over resumptions by `swap`: device time of the copies back"""
    return _total(_swapped(records, "resume"), "swap_in_s")


@metric("B", "Bytes swapped")
def swapped_bytes(records: Records) -> float:
    """ΣP.bytes: both directions"""
    return _total(records.preemptions, "bytes")


@metric("preemptions", "Preemptions recomputed for want of host room")
def recompute_fallbacks(records: Records) -> float:
    """rows of P with event `preempt` and `refused`: the host pool had no room for them"""
    rows = records.preemptions
    return float(((rows["event"] == "preempt") & rows["refused"].astype(bool)).sum())


def _owed(passes: pd.DataFrame) -> Floats:
    """The part of what is neither copy nor due decode that resuming passes owe to resumption.

    A pass that prefills shares it by tokens: recomputed ones against new prompts and newest tokens,
    which were due anyway. One that only decodes owes all.
    """
    prefill = passes["prefill_tokens"].to_numpy(np.float64)
    recomputed = passes["recomputed_tokens"].to_numpy(np.float64)
    return np.where(prefill > 0, recomputed / np.maximum(prefill, 1), 1.0)


def _resuming(records: Records) -> pd.DataFrame:
    return records.steps[records.steps["resumed_requests"] > 0]


def _decoding(passes: pd.DataFrame) -> pd.DataFrame:
    return passes[passes["decode_tokens"] > 0]


def _swapped(records: Records, event: str) -> pd.DataFrame:
    rows = records.preemptions
    return rows[(rows["event"] == event) & (copies_blocks(rows["policy"]))]


def _total(rows: pd.DataFrame, column: str) -> float:
    """The sum, NaN if a row does not know its part: an unknown copy is not one of no cost."""
    return math.fsum(rows[column].astype(float))


def _copied_in(records: Records, steps: pd.Series) -> Floats:
    """Of each pass: seconds of the copies back in it, 0 without any."""
    copied = _swapped(records, "resume").groupby("step")["swap_in_s"].sum()
    return copied.reindex(steps, fill_value=0.0).to_numpy(np.float64)

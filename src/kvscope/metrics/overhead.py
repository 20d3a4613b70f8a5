"""Resume overhead: the paper's measure, the net measure, and their parts.

docs/METRICS.md explains the difference. Every function takes the records of one repeat and returns
seconds unless it states another unit.
"""

import math

import numpy as np
import pandas as pd
from scipy.spatial import KDTree

from kvscope.base.arraytypes import Floats
from kvscope.metrics.metric import metric
from kvscope.tables.due import plain_decode
from kvscope.tables.run_view import RunView

# Plain decode passes that stand in for one resuming pass.
TWINS = 10
# 95 % of normal errors lie within so many standard deviations.
NORMAL_95 = 1.96


@metric("s", "Resume overhead, gross", modeled_interval=True, better=-1)
def resume_overhead_gross_s(records: RunView) -> float:
    """Σ(S.duration_s over passes with resumed_requests > 0) + swap_out_s. Source: kvscope"""
    return float(_resuming_passes(records)["duration_s"].sum()) + swap_out_s(records)


@metric(
    "s", "Resume overhead, the paper's", modeled_interval=True, better=-1, optional=True, column=50
)
def resume_overhead_as_published_s(records: RunView) -> float:
    """Σ(S.duration_s over passes with resumed_requests > 0) + Σ(T.end_s − T.start_s over rows with
    direction `out` and kind `kv`): swap-out by a clock around calls that do not synchronise, as the
    paper timed it. On a GPU these return before the copies end. Source: the post-processing of logs
    in the paper's artifact
    """
    out = records.swapped_out
    issued_s = math.fsum((out["end_s"] - out["start_s"]).astype(float))
    return float(_resuming_passes(records)["duration_s"].sum()) + issued_s


def net_of_resuming(records: RunView) -> Floats:
    """Seconds of each resuming pass that the resumption caused, one value a pass.

    These are its copies back, what it rebuilds, and `_resumption_share` of the time beyond these
    and expected decoding.
    """
    passes = _resuming_passes(records)
    if passes.empty:
        return np.zeros(0)
    duration = passes["duration_s"].to_numpy(np.float64)
    expected_s = records.pass_durations.due_s(passes.index).to_numpy(np.float64)
    copied = _swap_in_s_by_pass(records, passes["step"])
    net: Floats = copied + (duration - copied - expected_s) * _resumption_share(passes)
    return net


@metric("s", "Net, where nothing resumes", display="ms", signed=True, optional=True, column=70)
def resume_overhead_net_control_s(records: RunView) -> float:
    """the net measure of passes that resume nothing, which is its error; see below

    Each resuming pass is replaced by the mean of the TWINS plain decode passes of its repeat that
    are nearest in requests and context, both in units of their standard deviation. Their expected
    decoding comes from a fit that leaves them out, and the resumption share is that of the pass.
    """
    passes = _decoding_passes(_resuming_passes(records))
    if passes.empty:
        return 0.0
    errors = control_errors_s(records)
    if errors.empty:
        return math.nan
    decoding = records.pass_durations.decode_load
    spread = decoding.loc[errors.index].std(ddof=0).replace(0, 1)
    twins = min(TWINS, len(errors))
    tree = KDTree(decoding.loc[errors.index] / spread)
    _, nearest = tree.query(decoding.loc[passes.index] / spread, k=range(1, twins + 1))
    return float((errors.to_numpy()[nearest].mean(axis=1) * _resumption_share(passes)).sum())


@metric("s", "Net, uncertainty", display="ms", optional=True, column=80)
def resume_overhead_net_uncertainty_s(records: RunView) -> float:
    """max(|resume_overhead_net_control_s|, 1.96 · e · √Σ share²), e the root mean square error of
    plain decode passes, share that of resumption in each pass; see below

    Errors of passes are taken to be independent, with the size of those of the repeat's plain
    decode passes.
    """
    passes = _decoding_passes(_resuming_passes(records))
    if passes.empty:
        return 0.0
    of_one = math.sqrt((control_errors_s(records) ** 2).mean())
    chance = NORMAL_95 * of_one * math.sqrt((_resumption_share(passes) ** 2).sum())
    return max(chance, abs(resume_overhead_net_control_s(records)))


@metric(
    "s",
    "Resume overhead, net",
    uncertainty=resume_overhead_net_uncertainty_s,
    modeled_interval=True,
    better=-1,
    signed=True,
    optional=True,
    column=60,
    first=True,
)
def resume_overhead_net_s(records: RunView) -> float:
    """Σ(net over passes with resumed_requests > 0) + swap_out_s; see below. Source: kvscope"""
    return float(net_of_resuming(records).sum()) + swap_out_s(records)


def control_errors_s(records: RunView) -> pd.Series:
    """Seconds of each plain decode pass beyond those expected by a fit that leaves it out."""
    plain = records.steps[plain_decode(records.steps)]
    expected_s = records.pass_durations.held_out_due_s.loc[plain.index]
    return (plain["duration_s"] - expected_s).astype(float).dropna()


@metric("s", "Swap out", modeled_interval=True)
def swap_out_s(records: RunView) -> float:
    """ΣT.copy_s over rows with direction `out` and kind `kv`: time of the copies to the host"""
    return _total(records.swapped_out, "copy_s")


@metric("s", "Swap in", modeled_interval=True)
def swap_in_s(records: RunView) -> float:
    """ΣT.copy_s over rows with direction `in`: time of the copies back"""
    return _total(records.copied_back, "copy_s")


@metric("s", "Rebuild K and V", modeled_interval=True)
def rebuild_s(records: RunView) -> float:
    """ΣT.rebuild_s: device time to make K and V of activations"""
    return math.fsum(records.transfers["rebuild_s"].astype(float).fillna(0))


@metric("s", "Write-through", modeled_interval=True)
def save_s(records: RunView) -> float:
    """ΣT.copy_s over rows with direction `out` and kind `activations`: device time to copy them to
    the host as they are computed. On a GPU these copies run behind the next pass
    """
    return _total(records.saved, "copy_s")


@metric("B", "Bytes swapped", display="GB")
def swapped_bytes(records: RunView) -> float:
    """ΣT.bytes of preempted requests: both directions"""
    return _total(pd.concat([records.swapped_out, records.copied_back]), "bytes")


@metric("preemptions", "Preemptions recomputed for want of host room")
def recompute_fallbacks(records: RunView) -> float:
    """rows of P with event `preempt` and `refused`: the host pool had no room for them"""
    rows = records.preemptions
    return float(((rows["event"] == "preempt") & rows["refused"].astype(bool)).sum())


def _resumption_share(passes: pd.DataFrame) -> Floats:
    """The share of the time beyond copies and expected decoding that is due to resumption.

    In a pass with prefill it is the share of recomputed tokens among prefill tokens, as the others
    would have been computed anyway. In a pass that only decodes it is 1.
    """
    prefill = passes["prefill_tokens"].to_numpy(np.float64)
    recomputed = passes["recomputed_tokens"].to_numpy(np.float64)
    return np.where(prefill > 0, recomputed / np.maximum(prefill, 1), 1.0)


def _resuming_passes(records: RunView) -> pd.DataFrame:
    return records.steps[records.steps["resumed_requests"] > 0]


def _decoding_passes(passes: pd.DataFrame) -> pd.DataFrame:
    return passes[passes["decode_tokens"] > 0]


def _total(rows: pd.DataFrame, column: str) -> float:
    """The sum of a column; NaN if a row has no value, as an unknown copy still has a cost."""
    return math.fsum(rows[column].astype(float))


def _swap_in_s_by_pass(records: RunView, steps: pd.Series) -> Floats:
    """Seconds to copy blocks back, and to rebuild them, in each of these steps; 0 without any."""
    rows = records.copied_back
    back_s = rows["copy_s"] + rows["rebuild_s"].astype(float).fillna(0)
    copied = back_s.groupby(rows["step"]).sum()
    return copied.reindex(steps, fill_value=0.0).to_numpy(np.float64)

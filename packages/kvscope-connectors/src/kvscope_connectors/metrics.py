"""Metrics of vLLM's offloading: stored and loaded tokens, and waits of requests for them.

Where vLLM has a metric of the same, its name stands in the formula.
"""

import math
from typing import TYPE_CHECKING

import pandas as pd

from kvscope.api.metrics import metric

if TYPE_CHECKING:  # which metrics there are is known before what runs are read with
    from kvscope.api.runs import RunView


@metric.metric("B", "Bytes stored", display="GB", optional=True, order=511)
def offload_stored_bytes(records: "RunView") -> float:
    """ΣJ.bytes of jobs with direction `out`: vLLM's `vllm:kv_offload_store_bytes`"""
    return math.fsum(records.stored["bytes"])


@metric.metric(
    "B", "Bytes stored and never loaded", better=-1, display="GB", optional=True, order=512
)
def offload_unused_bytes(records: "RunView") -> float:
    """ΣJ.bytes · (1 − J.loaded_blocks / J.blocks) of jobs with direction `out`"""
    rows = records.stored
    unused = 1 - rows["loaded_blocks"].astype(float) / rows["blocks"]
    return math.fsum(rows["bytes"] * unused)


@metric.metric("B", "Bytes loaded", display="GB", optional=True, order=513)
def offload_loaded_bytes(records: "RunView") -> float:
    """ΣJ.bytes of jobs with direction `in`: vLLM's `vllm:kv_offload_load_bytes`"""
    return math.fsum(records.loaded["bytes"])


@metric.metric("s", "Stores", optional=True, order=514)
def offload_store_s(records: "RunView") -> float:
    """ΣJ.copy_s of jobs with direction `out`: vLLM's `vllm:kv_offload_store_time`"""
    return math.fsum(records.stored["copy_s"])


@metric.metric("s", "Loads", optional=True, order=515)
def offload_load_s(records: "RunView") -> float:
    """ΣJ.copy_s of jobs with direction `in`: vLLM's `vllm:kv_offload_load_time`"""
    return math.fsum(records.loaded["copy_s"])


@metric.metric("tokens", "Tail tokens recomputed", better=-1, optional=True, order=516)
def offload_tail_tokens(records: "RunView") -> float:
    """ΣP.recomputed_tokens over resumptions that vLLM's offloading loaded blocks for"""
    rows = records.preemptions
    resumed = rows[rows["event"] == "resume"]
    loaded = records.batch[records.batch["loaded_tokens"].astype(float) > 0]
    loaded = loaded[["request_id", "step"]]
    return float(resumed.merge(loaded, on=["request_id", "step"])["recomputed_tokens"].sum())


@metric.metric("s", "Waiting for loads", better=-1, optional=True, order=517)
def offload_wait_s(records: "RunView") -> float:
    """Σ(S.start_s of the pass that a load serves − J.ordered_s): requests hold their blocks, and
    are in no pass
    """
    rows = served_loads(records)
    return math.fsum(rows["served_s"] - rows["ordered_s"])


@metric.metric("s", "Every request waits for copies", better=-1, optional=True, order=518)
def offload_idle_s(records: "RunView") -> float:
    """ΣS.load_wait_s: there is no pass, as every request waits for copies"""
    if records.record.recorded:
        return math.nan
    return math.fsum(records.steps["load_wait_s"].astype(float).fillna(0))


@metric.metric("stores", "Stores that a pass waits for", better=-1, optional=True, order=519)
def offload_awaited_stores(records: "RunView") -> float:
    """rows of J with `awaited_step`: the pass gives their blocks away, and waits if they go on"""
    return float(records.stored["awaited_step"].notna().sum())


def served_loads(records: "RunView") -> pd.DataFrame:
    """The loads of a repeat, with `served_s`, the start of the pass that began with them."""
    if records.loaded.empty:
        return records.loaded.assign(served_s=pd.Series(dtype=float))
    starts = records.steps.set_index("step")["start_s"]
    rows = records.batch[records.batch["loaded_tokens"].astype(float) > 0]
    rows = rows[["request_id", "step"]].assign(served_s=rows["step"].map(starts))
    return pd.merge_asof(
        records.loaded.dropna(subset="ordered_s").sort_values("step").astype({"step": "int64"}),
        rows.sort_values("step").astype({"step": "int64"}),
        on="step",
        by="request_id",
        direction="forward",
    ).dropna(subset="served_s")


METRICS = (
    offload_stored_bytes,
    offload_unused_bytes,
    offload_loaded_bytes,
    offload_store_s,
    offload_load_s,
    offload_tail_tokens,
    offload_wait_s,
    offload_idle_s,
    offload_awaited_stores,
)

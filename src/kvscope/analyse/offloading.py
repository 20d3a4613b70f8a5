"""Metrics of vLLM's offloading: what it stores and loads, and what requests wait for it.

Where vLLM has a metric of the same, its name stands in the formula.
"""

import math

import pandas as pd

from kvscope.analyse.metric import metric
from kvscope.analyse.run_view import RunView


@metric("B", "Bytes stored", display="GB", optional=True)
def offload_stored_bytes(records: RunView) -> float:
    """ΣT.bytes of jobs with direction `out`: vLLM's `vllm:kv_offload_store_bytes`"""
    return math.fsum(records.stored["bytes"])


@metric("B", "Bytes stored and never loaded", better=-1, display="GB", optional=True)
def offload_unused_bytes(records: RunView) -> float:
    """ΣT.bytes · (1 − T.loaded_blocks / T.blocks) of jobs with direction `out`"""
    rows = records.stored
    unused = 1 - rows["loaded_blocks"].astype(float) / rows["blocks"]
    return math.fsum(rows["bytes"] * unused)


@metric("B", "Bytes loaded", display="GB", optional=True)
def offload_loaded_bytes(records: RunView) -> float:
    """ΣT.bytes of jobs with direction `in`: vLLM's `vllm:kv_offload_load_bytes`"""
    return math.fsum(records.loaded["bytes"])


@metric("s", "Stores", optional=True)
def offload_store_s(records: RunView) -> float:
    """ΣT.copy_s of jobs with direction `out`: vLLM's `vllm:kv_offload_store_time`"""
    return math.fsum(records.stored["copy_s"])


@metric("s", "Loads", optional=True)
def offload_load_s(records: RunView) -> float:
    """ΣT.copy_s of jobs with direction `in`: vLLM's `vllm:kv_offload_load_time`"""
    return math.fsum(records.loaded["copy_s"])


@metric("tokens", "Tail tokens recomputed", better=-1, optional=True)
def offload_tail_tokens(records: RunView) -> float:
    """ΣP.recomputed_tokens over resumptions that vLLM's offloading loaded blocks for"""
    rows = records.preemptions
    resumed = rows[rows["event"] == "resume"]
    loaded = records.batch[records.batch["loaded_tokens"].astype(float) > 0]
    loaded = loaded[["request_id", "step"]]
    return float(resumed.merge(loaded, on=["request_id", "step"])["recomputed_tokens"].sum())


@metric("s", "Waiting for loads", better=-1, optional=True)
def offload_wait_s(records: RunView) -> float:
    """Σ(S.start_s of the pass that a load serves − T.ordered_s): requests hold their blocks, and
    are in no pass
    """
    rows = served_loads(records)
    return math.fsum(rows["served_s"] - rows["ordered_s"])


@metric("s", "Every request waits for copies", better=-1, optional=True)
def offload_idle_s(records: RunView) -> float:
    """ΣS.load_wait_s: there is no pass, as every request waits for copies"""
    if records.record.recorded:
        return math.nan
    return math.fsum(records.steps["load_wait_s"].astype(float).fillna(0))


@metric("stores", "Stores that a pass waits for", better=-1, optional=True)
def offload_awaited_stores(records: RunView) -> float:
    """rows of T with `awaited_step`: the pass gives their blocks away, and waits if they go on"""
    return float(records.stored["awaited_step"].notna().sum())


def served_loads(records: RunView) -> pd.DataFrame:
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

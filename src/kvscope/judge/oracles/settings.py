"""Oracles of settings: the engine, workload and repeats are those of experiment.yaml."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from kvscope.base.statistics import half_width_share
from kvscope.judge.oracles.batches import least, most_tokens
from kvscope.judge.oracles.run_tables import RunTables, bad_rows
from kvscope.plan import registry
from kvscope.plan.models import BYTES
from kvscope.plan.policy import HostPools, Overflow
from kvscope.plan.repeats import StoppingRule
from kvscope.plan.workload import BY_PASS
from kvscope.tables.kv_use import most_blocks
from kvscope.tables.oracle import NONE, Violations
from kvscope.tables.runschema import RunRecord
from kvscope.tables.throughput import throughput_tokens_per_s

GIB = 2**30
DIGITS = 9  # to which two computations of one share agree
Pair = tuple[str, Any, Any]
"""A quantity's name, its value in the run, and by the settings (None if they do not state it)."""


def differing(pairs: Iterable[Pair]) -> Violations:
    """Violations, one for each quantity with another value in the run than by the settings."""
    wrong = [
        f"{name} is {found}, the settings have {expected}"
        for name, found, expected in pairs
        if expected is not None and found != expected
    ]
    return Violations(len(wrong), wrong[0]) if wrong else NONE


def settings_differ(run: RunTables) -> Violations:
    """The engine, its memory, the requests and the repeats match the experiment's settings."""
    return differing([*_of_engine(run), *_of_requests(run), *_of_repeats(run)])


def _of_engine(run: RunTables) -> Iterator[Pair]:
    engine, cache, model = run.engine, run.section("cache"), run.section("model")
    size = cache.get("block_size")
    block_bytes = _block_bytes(cache, model)
    yield "block_size", engine.stated("block_size"), size
    yield "block_bytes", engine.block_bytes, block_bytes
    yield "layers", engine.layers, model.get("layers")
    yield "device", engine.device, run.section("device").get("name")
    yield "kv_blocks_total", engine.kv_blocks_total, _blocks(cache, block_bytes)
    yield "cache.blocks", cache.get("blocks"), _blocks_of_demand(run, cache)
    yield from _of_host_pools(run, block_bytes)


def _of_host_pools(run: RunTables, block_bytes: int | None) -> Iterator[Pair]:
    """Host pool sizes as the installed policy computes them."""
    engine, overflow = run.engine, run.section("overflow")
    name = str(overflow.get("name"))
    if name not in registry.find_registered("overflow"):
        return
    policy = registry.load("overflow", name)
    assert issubclass(policy, Overflow)
    total, inputs = engine.host_blocks_total, engine.input_blocks_total
    if total is None:
        total = int(run.steps["host_blocks_total"].iloc[0])
    size = _input_block_bytes(run.section("cache").get("block_size"), run.section("model"))
    pools = policy.host_pools(
        overflow,
        HostPools(block_bytes or 1, size or 1),
        HostPools(total - inputs, inputs),
    )
    if pools is None:
        return
    if pools.inputs:
        yield "activation_block_bytes", engine.stated("input_block_bytes"), size
    yield "host_blocks_total", total, sum(pools)
    yield "activation_blocks_total", inputs, pools.inputs


def _block_bytes(cache: Mapping[str, Any], model: Mapping[str, Any]) -> int | None:
    """Bytes of a block, of the layers of a KV group; None if the settings lack a size of it."""
    fp8 = cache.get("dtype") == "fp8"
    width = 1 if fp8 else BYTES.get(str(model.get("dtype")))
    parts = [cache.get("block_size"), *_kept_elements(model)]
    if width is None or not all(isinstance(part, int) for part in parts):
        return None
    return width * math.prod(map(int, parts))


def _kept_elements(model: Mapping[str, Any]) -> list[Any]:
    """The factors of the numbers that a block keeps of a token."""
    kinds = model.get("kv_layers")
    if kinds is None:
        return [2, *(model.get(key) for key in ("layers", "kv_heads", "head_size"))]
    return [model.get("block_layers"), max(kind.get("token_elements", 0) for kind in kinds)]


def _input_block_bytes(block_size: Any, model: Mapping[str, Any]) -> int | None:
    """Bytes of a block's inputs of attention; None if the settings lack a size of the model."""
    parts = [block_size, *(model.get(key) for key in ("layers", "hidden_size"))]
    width = BYTES.get(str(model.get("dtype")))
    if width is None or not all(isinstance(part, int) for part in parts):
        return None
    return width * math.prod(map(int, parts))


def _blocks(cache: Mapping[str, Any], block_bytes: int | None) -> Any:
    """Blocks by the settings: as stated, or as many as fit into the stated GiB."""
    blocks, gib = cache.get("blocks"), cache.get("gib")
    if blocks is None and isinstance(gib, int | float) and block_bytes:
        return int(gib * GIB // block_bytes)
    return blocks


def _blocks_of_demand(run: RunTables, cache: Mapping[str, Any]) -> int | None:
    """Blocks that cache.oversubscription gives for the requests; None if it sizes no cache."""
    ratio, size = cache.get("oversubscription"), cache.get("block_size")
    requests = run.records.workload
    if not isinstance(ratio, int | float) or not isinstance(size, int) or requests.empty:
        return None
    tokens = requests["prompt_tokens"] + requests["output_tokens"]
    blocks = -(-tokens // size)
    if run.groups_differ:
        most = most_blocks(run.kv_groups, tokens.to_numpy(np.int64))
        blocks = pd.Series(most, tokens.index)
    # A turn of a conversation holds the turns before it.
    alone = requests["conversation"].fillna(requests.index.to_series().map("alone {}".format))
    return max(1, int(blocks.groupby(alone).max().sum() / ratio))


def _of_requests(run: RunTables) -> Iterator[Pair]:
    workload = run.section("workload")
    yield "the number of requests", len(run.records.workload), workload.get("num_requests")
    arrival, times_s = workload.get("arrival"), run.records.workload["arrival_s"]
    yield "the first arrival", times_s.min(), 0.0 if arrival in ("all_at_once", "poisson") else None
    yield "the last arrival", times_s.max(), 0.0 if arrival == "all_at_once" else None
    if "timeout_s" not in workload and arrival != BY_PASS:
        yield "the number of aborted requests", len(run.records.aborted), 0


def _of_repeats(run: RunTables) -> Iterator[Pair]:
    setting, record = run.records.settings.get("repeats"), run.record
    if setting is None:
        return
    rule = StoppingRule(**setting) if isinstance(setting, Mapping) else StoppingRule.of(setting)
    rates = [throughput_tokens_per_s(run.repeats[n].requests) for n in run.records.timed]
    more = rule.until or (_is_reference(record) and len(rates) % rule.min == 0)
    yield "the number of repeats", len(rates), len(rates) if more else rule.min
    yield "whether there are repeats.min repeats", len(rates) >= rule.min, True
    recorded = record.repeats
    share = recorded.half_width_share if recorded else None
    share = math.nan if share is None else share
    expected_facts = rule.facts(len(rates), share)
    keys = ("min", "until", "budget_s", "measured")
    for key in (*keys, "reached") if recorded and recorded.states("reached") else keys:
        value, name = recorded and recorded.stated(key), f"repeats.{key} of run.json"
        yield name, value, expected_facts[key]
        yield f"whether {name} is null", value is None, expected_facts[key] is None
    if recorded and recorded.states("half_width_share") and _is_of_throughput(record):
        expected = half_width_share(rates)
        yield "repeats.half_width_share of run.json", _rounded(share), _rounded(expected)


def _is_reference(record: RunRecord) -> bool:
    """Whether the experiment may be in several groups of its campaign, and has repeats of each."""
    return bool(record.campaign and record.campaign.reference == record.experiment_id)


def _is_of_throughput(record: RunRecord) -> bool:
    """Whether the half width is that of the run's throughput over all of its repeats.

    In a campaign it is that of a comparison; runs of before `budget_s` left out disturbed repeats.
    """
    return not record.campaign and bool(record.repeats and record.repeats.max is None)


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else round(value, DIGITS)


def limit_exceeded(run: RunTables) -> Violations | None:
    """No pass computes more tokens or has more requests than the experiment's limits allow."""
    tokens, requests = most_tokens(run), least(run.section("engine").get("max_num_seqs"))
    if tokens == requests == math.inf:
        return None
    steps = run.steps
    words = f"{{}} tokens of {{}} requests; the limits are {tokens} and {requests}"
    return bad_rows(
        steps,
        (steps["scheduled_tokens"] > tokens) | (steps["requests"] > requests),
        lambda r: words.format(r["scheduled_tokens"], r["requests"]),
    )

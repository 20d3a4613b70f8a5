"""The evidence that a run has, and the rules of its engine, as its run.json and settings say."""

from collections.abc import Iterator

from kvscope.actions import ACTIVATION, NATIVE, RECOMPUTE, SWAP
from kvscope.analyse.oracles.run_tables import RunTables
from kvscope.analyse.oracles.victims import is_ranked
from kvscope.judge import evidence as of
from kvscope.judge.rules import Group, Rules
from kvscope.kv_plan import KINDS
from kvscope.plan.parts import VLLM_0_4_2

ONE_ACTION = {action.name: action.name for action in (RECOMPUTE, SWAP, ACTIVATION, NATIVE)}
ONE_ACTION["native_full"] = NATIVE.name
"""The action of every preemption, of policies that have but one."""


def evidence_of(run: RunTables) -> frozenset[str]:
    """The kinds of evidence that a run has."""
    return frozenset(_evidence(run))


def _evidence(run: RunTables) -> Iterator[str]:
    said = run.recorded
    if run.imported or run.cut:
        return
    yield from (of.PASSES, of.CLOCK)
    in_order = not said.get("overlapping")
    if in_order:
        yield of.ORDER
    if not said:
        yield of.WORKLOAD
    if run.section("overflow"):
        yield of.SETTINGS
    if run.records.workload["prompt_token_ids"].notna().any():
        yield of.TOKEN_IDS
    if run.caches_prefixes or not run.finds_prefixes:
        yield of.PREFIXES
    known = all(group.kind in KINDS for group in run.kv_groups)
    together = run.groups_differ and said.get("prefix_caching")
    if in_order and known and not said.get("connector") and not together:
        yield of.BLOCKS
    if run.kv_groups and not (said and run.groups_differ):
        yield of.KV_GROUPS
    if run.steps["host_blocks_total"].any():
        yield of.HOST_POOL
    if not said.get("connector"):
        yield from (of.COPIES, of.JOBS)


def rules_of(run: RunTables) -> Rules:
    """The sizes and rules by which the engine of a run works."""
    engine, overflow, said = run.engine, run.section("overflow"), run.recorded
    name = str(overflow.get("name"))
    return Rules(
        block_size=run.records.block_size,
        kv_blocks_total=engine.get("kv_blocks_total", 0),
        groups=_groups(run),
        block_bytes=engine.get("block_bytes", 0),
        host_blocks_total=engine.get("host_blocks_total", 0),
        activation_blocks_total=engine.get("activation_blocks_total", 0),
        activation_block_bytes=engine.get("activation_block_bytes", 0),
        prefix_caching=run.caches_prefixes,
        whole=run.section("cache").get("admission") == VLLM_0_4_2,
        always=ONE_ACTION.get(name),
        ranked="name" in overflow and is_ranked(run),
        chunk_tokens=run.section("batching").get("chunk_tokens"),
        most_drafts=said.get("draft_tokens") or 0,
        stores_outputs=name != NATIVE.name,
        ends_early=bool(said),
        waiting_first=run.section("batching").get("name") == "prefill_first",
    )


def _groups(run: RunTables) -> list[Group]:
    found = [
        Group(one.kind, one.block_tokens, one.window_tokens, one.useful_bytes)
        for one in run.kv_groups
    ]
    return found or [Group("FullAttention", run.records.block_size)]

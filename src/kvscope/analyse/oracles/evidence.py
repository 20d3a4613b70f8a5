"""The evidence that a run has, and the rules of its engine, as its run.json and settings say."""

from kvscope.actions import ACTIVATION, NATIVE, RECOMPUTE, SWAP
from kvscope.analyse.oracles.run_tables import RunTables
from kvscope.analyse.oracles.victims import is_ranked
from kvscope.judge.rules import Group, Rules
from kvscope.setting_values import VLLM_0_4_2

ONE_ACTION = {action.name: action.name for action in (RECOMPUTE, SWAP, ACTIVATION, NATIVE)}
ONE_ACTION["native_full"] = NATIVE.name
"""The action of every preemption, of policies that have but one."""


def evidence_of(run: RunTables) -> frozenset[str]:
    """The kinds of evidence that a run has."""
    return run.evidence


def rules_of(run: RunTables) -> Rules:
    """The sizes and rules by which the engine of a run works."""
    engine, overflow, said = run.engine, run.section("overflow"), run.server
    name = str(overflow.get("name"))
    return Rules(
        block_size=run.records.block_size,
        kv_blocks_total=engine.kv_blocks_total or 0,
        groups=_groups(run),
        block_bytes=int(engine.block_bytes or 0),
        host_blocks_total=engine.host_blocks_total or 0,
        activation_blocks_total=engine.activation_blocks_total,
        activation_block_bytes=engine.activation_block_bytes,
        prefix_caching=run.caches_prefixes,
        whole=run.section("cache").get("admission") == VLLM_0_4_2,
        always=ONE_ACTION.get(name),
        ranked="name" in overflow and is_ranked(run),
        chunk_tokens=run.section("batching").get("chunk_tokens"),
        most_drafts=run.most_drafts,
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

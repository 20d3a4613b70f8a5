"""The sizes and rules of a run's engine, as its run.json and settings say, for its replay."""

from kvscope.actions import ACTIVATION, NATIVE, RECOMPUTE, SWAP
from kvscope.analyse.oracles.batches import policy_of
from kvscope.analyse.oracles.run_tables import RunTables
from kvscope.analyse.oracles.victims import is_ranked
from kvscope.evidence import WORKLOAD
from kvscope.judge.rules import Group, Rules
from kvscope.setting_values import VLLM_0_4_2
from kvscope.tables import BATCH

ONE_ACTION = {action.name: action.name for action in (RECOMPUTE, SWAP, ACTIVATION, NATIVE)}
ONE_ACTION["native_full"] = NATIVE.name
"""The action of every preemption, of policies that have but one."""


def rules_of(run: RunTables) -> Rules:
    """The sizes and rules by which the engine of a run works."""
    engine, overflow = run.engine, run.section("overflow")
    name = str(overflow.get("name"))
    return Rules(
        block_size=run.records.block_size,
        kv_blocks_total=engine.kv_blocks_total or 0,
        groups=_groups(run),
        block_bytes=int(engine.block_bytes or 0),
        host_blocks_total=engine.host_blocks_total or 0,
        activation_blocks_total=engine.activation_blocks_total or 0,
        activation_block_bytes=engine.activation_block_bytes or 0,
        prefix_caching=run.caches_prefixes,
        whole=run.section("cache").get("admission") == VLLM_0_4_2,
        always=ONE_ACTION.get(name),
        ranked="name" in overflow and is_ranked(run),
        chunk_tokens=policy_of(run).pass_tokens,
        most_tentative=sum(run.most_tokens(column) for column, _ in BATCH.tentative),
        stores_outputs=name != NATIVE.name,
        ends_early=WORKLOAD not in run.evidence,
        waiting_first=run.section("batching").get("name") == "prefill_first",
    )


def _groups(run: RunTables) -> list[Group]:
    found = [
        Group(one.kind, one.block_tokens, one.window_tokens, one.useful_bytes)
        for one in run.kv_groups
    ]
    return found or [Group("FullAttention", run.records.block_size)]

"""The sizes and rules of a run's engine, as its run.json and settings say, for its replay."""

from kvscope.base.setting_values import VLLM_0_4_2
from kvscope.judge.oracles import batches, victims
from kvscope.judge.oracles.run_tables import RunTables
from kvscope.judge.twin.rules import Group, Rules
from kvscope.tables import BATCH
from kvscope.tables.evidence import WORKLOAD


def rules_of(run: RunTables) -> Rules:
    """The sizes and rules of the engine of a run."""
    engine = run.engine
    return Rules(
        block_size=run.records.block_size,
        kv_blocks_total=engine.kv_blocks_total or 0,
        groups=_groups(run),
        block_bytes=int(engine.block_bytes or 0),
        host_blocks_total=engine.host_blocks_total or 0,
        input_blocks_total=engine.input_blocks_total or 0,
        input_block_bytes=engine.input_block_bytes or 0,
        prefix_caching=run.caches_prefixes,
        whole=run.section("cache").get("admission") == VLLM_0_4_2,
        always=_only_action(run),
        ranked=_has_policy(run) and victims.is_ranked(run),
        chunk_tokens=batches.policy_of(run).pass_tokens,
        most_tentative=sum(run.most_tokens(column) for column, _ in BATCH.tentative),
        stores_outputs=_stores_outputs(run),
        ends_early=WORKLOAD not in run.evidence,
        waiting_first=run.section("batching").get("name") == "prefill_first",
    )


def _only_action(run: RunTables) -> str | None:
    """The action of every preemption, if the policy has only one."""
    return vars(victims.policy_of(run)).get("only_action") if _has_policy(run) else None


def _stores_outputs(run: RunTables) -> bool:
    """Whether jobs store blocks of outputs, as far as a policy says so."""
    return victims.policy_of(run).stores_outputs if _has_policy(run) else True


def _has_policy(run: RunTables) -> bool:
    return "name" in run.section("overflow")


def _groups(run: RunTables) -> list[Group]:
    groups = [
        Group(group.kind, group.block_tokens, group.window_tokens, group.useful_bytes)
        for group in run.kv_groups
    ]
    return groups or [Group("FullAttention", run.records.block_size)]

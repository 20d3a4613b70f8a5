"""Oracles of batches: each pass is filled as the batching policy declares."""

import math
from typing import Any, cast

import numpy as np

from kvscope.judge.oracles.run_tables import RunTables, bad_rows, combine, counts_of
from kvscope.plan import registry
from kvscope.plan.policy import Batching
from kvscope.tables.oracle import Violations
from kvscope.tables.phases import MIXED


def batching_wrong(run: RunTables) -> Violations:
    """Passes are filled as the batching policy declares (`cuts_prompts`, `mixes_phases`).

    A prompt is computed whole, or cut where the rest exceeds the pass's limit, or cut anywhere; a
    pass may mix prefill and decode, or must not. Tokens that were scheduled for a ranked victim
    before its preemption count.
    """
    policy, steps, most = policy_of(run), run.steps, most_tokens(run)
    cut = run.batch["sampled_tokens"] == 0
    parts, preempted = run.batch[cut], run.records.preemptions
    pass_rows, scheduled = run.pass_of(parts), steps["scheduled_tokens"].to_numpy()
    given_back = np.bincount(
        run.pass_of(preempted), counts_of(preempted["scheduled_tokens"]), len(steps)
    )
    filled = (scheduled + given_back)[pass_rows]
    mixed = steps["phase"] == MIXED
    return combine(
        bad_rows(
            run.batch,
            cut & (policy.cuts_prompts == "never"),
            lambda _: f"a part of its tokens is computed, with {policy.name}",
        ),
        bad_rows(
            parts,
            (filled < most) & (most < math.inf) & (policy.cuts_prompts != "freely"),
            lambda r: (
                f"a part of its tokens is computed in a pass of {r['of_pass']}; the limit is {most}"
            ),
            of_pass=scheduled[pass_rows],
        ),
        bad_rows(
            steps,
            mixed & (not policy.mixes_phases),
            lambda _: f"a pass does prefill and decode, with {policy.name}",
        ),
    )


def policy_of(run: RunTables) -> Batching:
    """The run's batching policy with its settings; without settings, a policy without promises."""
    settings = run.section("batching")
    name = settings.get("name")
    kind = Batching if name is None else cast(type[Batching], registry.load("batching", name))
    return kind.model_construct(**settings)


def most_tokens(run: RunTables) -> float:
    """How many tokens a pass may compute by the settings; infinite if they do not say."""
    return least(run.section("engine").get("max_num_batched_tokens"), policy_of(run).pass_tokens)


def least(*limits: Any) -> float:
    """The least of the integer limits; infinite without any."""
    return min((limit for limit in limits if isinstance(limit, int)), default=math.inf)

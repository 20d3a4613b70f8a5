"""Oracles of batches: a pass's totals, and the phase and tokens of each request in it."""

import math
from typing import Any

import numpy as np

from kvscope.analyse.oracles.run_tables import RunTables, bad_rows, combine, counts_of
from kvscope.oracle import Violations
from kvscope.passes import MIXED


def batching_wrong(run: RunTables) -> Violations:
    """Passes are filled as the batching policy says.

    With `mixed` and `prefill_first` a prompt is computed whole, and with the latter no pass does
    both prefill and decode. Other policies compute a part of a prompt only where the rest exceeds
    what the pass may compute. What was scheduled of a ranked victim before it was preempted counts.
    """
    name, steps, most = run.section("batching").get("name"), run.steps, most_tokens(run)
    cut = run.batch["sampled_tokens"] == 0
    parts, preempted = run.batch[cut], run.records.preemptions
    at, scheduled = run.pass_of(parts), steps["scheduled_tokens"].to_numpy()
    given_back = np.bincount(
        run.pass_of(preempted), counts_of(preempted["scheduled_tokens"]), len(steps)
    )
    filled = (scheduled + given_back)[at]
    both = (steps["phase"] == MIXED) & (name == "prefill_first")
    return combine(
        bad_rows(
            run.batch,
            cut & (name in ("mixed", "prefill_first")),
            lambda _: f"a part of its tokens is computed, with {name}",
        ),
        bad_rows(
            parts,
            (filled < most) & (most < math.inf),
            lambda r: (
                f"a part of its tokens is computed in a pass of {r['of_pass']}; the limit is {most}"
            ),
            of_pass=scheduled[at],
        ),
        bad_rows(steps, both, lambda _: f"a pass does prefill and decode, with {name}"),
    )


def most_tokens(run: RunTables) -> float:
    """How many tokens a pass may compute by the settings; infinite if they do not say."""
    return least(
        run.section("engine").get("max_num_batched_tokens"),
        run.section("batching").get("chunk_tokens"),
    )


def least(*limits: Any) -> float:
    """The least of the limits that are given; infinite if none is."""
    return min((one for one in limits if isinstance(one, int)), default=math.inf)

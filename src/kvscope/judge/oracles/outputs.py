"""Oracles of outputs: complete, equal in every repeat, and all blocks returned."""

import numpy as np

from kvscope.judge.oracles.run_tables import (
    RunTables,
    bad_rows,
    differ,
)
from kvscope.tables.oracle import NONE, Violations


def outputs_differ(run: RunTables) -> Violations:
    """A request has the same output tokens in every repeat that served it.

    If the workload gives the output tokens, the tokens that the model would have chosen are the
    same, too.
    """
    served = run.records.served
    wrong = np.zeros(len(served), bool)
    for column in ("output_sha256", "chosen_sha256"):
        first = served.groupby("request_id")[column].transform("first")
        wrong |= differ(served[column], first)
    return bad_rows(served, wrong, lambda _: "output tokens differ from those of an earlier repeat")


def nothing_served(run: RunTables) -> Violations:
    """Every repeat served at least one request."""
    empty = run.records.requests.groupby("repeat")["aborted"].all().reset_index()
    return bad_rows(empty, empty["aborted"], lambda _: "all requests were aborted")


def blocks_leaked(run: RunTables) -> Violations:
    """At the end of every repeat, all blocks of the KV cache and of the host pool are free."""
    leaks = run.engine.leaked_blocks
    if not leaks:
        return NONE
    first = leaks[0]
    leaked = f"{first.kv_blocks} blocks of the KV cache, {first.host_blocks} of the host pool"
    return Violations(len(leaks), f"repeat {first.repeat}: {leaked} not freed")

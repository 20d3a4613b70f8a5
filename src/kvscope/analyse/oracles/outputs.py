"""Oracles of outputs: complete, equal in every repeat, and all blocks returned."""

import numpy as np
import pandas as pd

from kvscope.analyse.oracles.run_tables import (
    OF_REQUEST,
    RunTables,
    bad_rows,
    combine,
    differ,
)
from kvscope.oracle import NONE, Violations


def tokens_missing(run: RunTables) -> Violations:
    """A request has all output tokens that it requested exactly if it was not aborted."""
    workload = run.records.workload.set_index("request_id")
    found = run.records.requests.join(
        workload["output_tokens"].rename("requested"), on="request_id"
    )
    wrong = (found["output_tokens"] == found["requested"]) == found["aborted"].astype(bool)
    words = "{} of {} output tokens, {}"
    return bad_rows(
        found,
        wrong,
        lambda r: words.format(
            r["output_tokens"], r["requested"], "aborted" if r["aborted"] else "served"
        ),
    )


OF_WORKLOAD = ("arrival_s", "prompt_tokens", "conversation", "turn")
"""Columns of `requests` that are those of `workload`."""


def request_differs(run: RunTables) -> Violations:
    """A request has the arrival and prompt of the workload, and the tokens that its passes sampled.

    The arrival of one that follows others is another oracle's (`conversations`). A served request
    has computed its prompt and all its output tokens but the last.
    """
    workload = run.records.workload.set_index("request_id")[[*OF_WORKLOAD]]
    rows = run.batch.groupby(OF_REQUEST)
    found = run.records.requests.join(workload.add_suffix("_workload"), on="request_id")
    found = found.join(rows["sampled_tokens"].sum().rename("sampled"), on=OF_REQUEST)
    found = found.join(rows["end_tokens"].max().rename("highest"), on=OF_REQUEST)
    found = found.fillna({"sampled": 0, "highest": 0})
    wrong = pd.Series(False, found.index)
    found["arrival_s_workload"] = found["arrival_s_workload"].fillna(found["arrival_s"])
    for column in OF_WORKLOAD:
        wrong |= differ(found[column], found[f"{column}_workload"])
    due = found["prompt_tokens"] + found["output_tokens"] - 1
    served = ~found["aborted"].astype(bool)
    return combine(
        bad_rows(found, wrong, lambda _: "arrival, prompt or turn differs from the workload"),
        bad_rows(
            found,
            found["output_tokens"] != found["sampled"],
            lambda r: f"{r['output_tokens']} output tokens, its passes sampled {r['sampled']:.0f}",
        ),
        bad_rows(
            found,
            served & (found["highest"] != due),
            lambda r: f"{r['highest']:.0f} tokens computed, which is not all",
        ),
    )


def outputs_differ(run: RunTables) -> Violations:
    """A request has the same output tokens in every repeat that served it.

    Where the workload's tokens came out, so are those that the model would have given.
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

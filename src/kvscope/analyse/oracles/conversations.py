"""Oracles of conversations: a turn follows the one before, and is given the workload's tokens."""

import pandas as pd

from kvscope.analyse.oracles.run_tables import (
    OF_REQUEST,
    TOLERANCE_S,
    RunTables,
    bad_rows,
    differ,
)
from kvscope.oracle import Violations
from kvscope.workload.requests import sha256_of_tokens


def has_followers(run: RunTables) -> bool:
    """Whether requests come when others have finished."""
    return run.records.has_followers


def has_known_outputs(run: RunTables) -> bool:
    """Whether the workload says what tokens come out."""
    return bool(run.records.workload["output_token_ids"].notna().any())


def turn_misplaced(run: RunTables) -> Violations:
    """A request that follows others comes when the last of them has finished and it has thought."""
    workload = run.records.workload
    follows = workload[workload["after"].notna()].explode("after")
    ends = run.records.requests[["repeat", "request_id", "finished_s"]]
    last = follows.merge(ends.rename(columns={"request_id": "after"}), on="after")
    last_s = last.groupby(OF_REQUEST)["finished_s"].max().rename("last_s")
    found = run.records.requests.join(last_s, on=OF_REQUEST)
    think_s = found["request_id"].map(workload.set_index("request_id")["think_s"])
    found["due_s"] = found["last_s"] + think_s
    found = found[found["request_id"].isin(follows["request_id"])]
    wrong = ~((found["arrival_s"] - found["due_s"]).abs() <= TOLERANCE_S)
    words = "comes at {0:.6f} s, what it follows and its think time end at {1:.6f} s"
    return bad_rows(found, wrong, lambda r: words.format(r["arrival_s"], r["due_s"]))


def known_output_differs(run: RunTables) -> Violations:
    """A served request has been given the tokens that the workload has for it."""
    outputs = run.records.workload.set_index("request_id")["output_token_ids"].dropna()
    due: pd.Series = outputs.map(sha256_of_tokens)
    rows = run.records.served
    rows = rows[rows["request_id"].isin(due.index)]
    wrong = differ(rows["output_sha256"], rows["request_id"].map(due))
    return bad_rows(rows, wrong, lambda _: "its output tokens are not those of the workload")

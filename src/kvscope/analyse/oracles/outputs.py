"""Oracles of what requests got: all tokens requested, the same in every repeat, nothing kept."""

import pandas as pd

from kvscope.analyse.oracles.run_tables import OF_REQUEST, RunTables, bad_rows, combine
from kvscope.oracle import NONE, Violations


def tokens_missing(run: RunTables) -> Violations:
    """A request got all output tokens that it asked for, or it was given up."""
    asked = run.records.workload.set_index("request_id")["output_tokens"].rename("asked")
    found = run.requests.join(asked, on="request_id")
    wrong = (found["output_tokens"] == found["asked"]) == found["aborted"].astype(bool)
    words = "{} tokens, asked for {}, {}"
    return bad_rows(
        found,
        wrong,
        lambda r: words.format(
            r["output_tokens"], r["asked"], "given up" if r["aborted"] else "served"
        ),
    )


def request_differs(run: RunTables) -> Violations:
    """A request arrives and is as long as the workload says, and got the tokens of its passes.

    One that was served has computed its prompt and all its output tokens but the last.
    """
    asked = run.records.workload.set_index("request_id")[["arrival_s", "prompt_tokens"]]
    rows = run.batch.groupby(OF_REQUEST)
    found = run.requests.join(asked.add_suffix("_asked"), on="request_id")
    found = found.join(rows["sampled_tokens"].sum().rename("given"), on=OF_REQUEST)
    found = found.join(rows["end_tokens"].max().rename("highest"), on=OF_REQUEST)
    found = found.fillna({"given": 0, "highest": 0})
    wrong = pd.Series(False, found.index)
    for column in ("arrival_s", "prompt_tokens"):
        wrong |= found[column] != found[f"{column}_asked"]
    due = found["prompt_tokens"] + found["output_tokens"] - 1
    served = ~found["aborted"].astype(bool)
    return combine(
        bad_rows(found, wrong, lambda _: "not as the workload has it"),
        bad_rows(
            found,
            found["output_tokens"] != found["given"],
            lambda r: f"{r['output_tokens']} tokens, its passes gave {r['given']:.0f}",
        ),
        bad_rows(
            found,
            served & (found["highest"] != due),
            lambda r: f"{r['highest']:.0f} tokens computed, the others were never",
        ),
    )


def outputs_differ(run: RunTables) -> Violations:
    """Every repeat gave a request the same tokens, where it was not given up."""
    served = run.records.served
    first = served.groupby("request_id")["output_sha256"].transform("first")
    differ = served["output_sha256"] != first
    return bad_rows(served, differ, lambda _: "other tokens than in an earlier repeat")


def nothing_served(run: RunTables) -> Violations:
    """Every repeat served somebody to the end."""
    empty = run.requests.groupby("repeat")["aborted"].all().reset_index()
    return bad_rows(empty, empty["aborted"], lambda _: "all requests were aborted")


def blocks_leaked(run: RunTables) -> Violations:
    """Every repeat gave all its blocks back, the cache's and the host pool's."""
    leaks = run.engine["leaked_blocks"]
    if not leaks:
        return NONE
    first = leaks[0]
    kept = f"{first['kv_blocks']} blocks of the KV cache, {first['host_blocks']} of the host pool"
    return Violations(len(leaks), f"repeat {first['repeat']}: {kept}")

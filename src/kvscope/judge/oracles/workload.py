"""Oracles of the workload: its requests are those of the settings, and come as it says."""

import math

import numpy as np
import pandas as pd

from kvscope.base.errors import BadInput
from kvscope.judge.oracles.run_tables import (
    OF_REQUEST,
    TOLERANCE_S,
    RunTables,
    bad_rows,
    differ,
)
from kvscope.judge.planned import experiment_of
from kvscope.plan.experiment import Experiment
from kvscope.tables import WORKLOAD
from kvscope.tables.oracle import Violations
from kvscope.workload.requests import build, sha256_of_tokens, to_frame

ROUNDING = 1e-12
"""Share by which a time may differ: the last digit of a logarithm is the library's."""
ROUNDED = ("arrival_s", "think_s")
LISTS = ("prompt_token_ids", "output_token_ids", "after")
EXACT = tuple(name for name in WORKLOAD.names if name not in (*ROUNDED, *LISTS))


def has_all_settings(run: RunTables) -> bool:
    """Whether the settings have all sections, so that the requests can be made of them."""
    needed = {name for name, field in Experiment.model_fields.items() if field.is_required()}
    return needed <= run.records.settings.keys()


def workload_differs(run: RunTables) -> Violations | None:
    """The requests are those that the settings and the seed give: arrivals, prompts and outputs.

    This includes the requests that each follows, and output tokens that the workload gives. Not
    applicable if the workload's file is not on this machine.
    """
    try:
        due = to_frame(build(experiment_of(run.records)))
    except BadInput:
        return None
    found = run.records.workload.reset_index(drop=True)
    if len(found) != len(due):
        return Violations(1, f"{len(found)} requests, the settings give {len(due)}")
    wrong = np.zeros(len(due), bool)
    for column in EXACT:
        wrong |= differ(found[column], due[column])
    for column in ROUNDED:
        found_s, due_s = (frame[column].astype(float) for frame in (found, due))
        wrong |= ~np.isclose(found_s, due_s, rtol=ROUNDING, atol=0, equal_nan=True)
    for column in LISTS:
        pairs = zip(found[column], due[column], strict=True)
        wrong |= [not np.array_equal(one, other) for one, other in pairs]
    return bad_rows(found, wrong, lambda _: "not the request that the settings give")


def has_followers(run: RunTables) -> bool:
    """Whether requests come when others have finished."""
    return run.records.has_followers


def has_known_outputs(run: RunTables) -> bool:
    """Whether the workload says what tokens come out."""
    return bool(run.records.workload["output_token_ids"].notna().any())


def turn_misplaced(run: RunTables) -> Violations:
    """A request that follows others arrives when the last of them has finished and its think time
    is over."""
    workload, requests = run.records.workload, run.records.requests
    followers = workload[workload["after"].notna()]
    columns = (followers[name] for name in ("request_id", "after", "think_s"))
    follows = {name: (after, think_s) for name, after, think_s in zip(*columns, strict=True)}
    columns = (requests[name] for name in (*OF_REQUEST, "finished_s"))
    ends_s = {(repeat, name): end_s for repeat, name, end_s in zip(*columns, strict=True)}
    found, due_s = requests[requests["request_id"].isin(follows)], []
    for repeat, name in zip(found["repeat"], found["request_id"], strict=True):
        after, think_s = follows[name]
        known_s = [ends_s[repeat, one] for one in after if (repeat, one) in ends_s]
        due_s.append(think_s + max(known_s, default=math.nan))
    wrong = ~((found["arrival_s"] - due_s).abs() <= TOLERANCE_S)
    words = "comes at {arrival_s:.6f} s, what it follows and its think time end at {due_s:.6f} s"
    return bad_rows(found, wrong, lambda r: words.format_map(r), due_s=due_s)


def known_output_differs(run: RunTables) -> Violations:
    """A served request has been given the tokens that the workload has for it."""
    outputs = run.records.workload.set_index("request_id")["output_token_ids"].dropna()
    due: pd.Series = outputs.map(sha256_of_tokens)
    rows = run.records.served
    rows = rows[rows["request_id"].isin(due.index)]
    wrong = differ(rows["output_sha256"], rows["request_id"].map(due))
    return bad_rows(rows, wrong, lambda _: "its output tokens are not those of the workload")


OF_WORKLOAD = ("arrival_pass", "abort_pass")


def comes_before_passes(run: RunTables) -> bool:
    """Whether requests come before passes, whatever the time is."""
    return bool(run.records.workload["arrival_pass"].notna().any())


def arrival_pass_wrong(run: RunTables) -> Violations:
    """A request arrives, and is aborted, after the number of passes that the workload says.

    If no request was left, the passes until the next arrival are skipped. A request that ended
    with its last token did so before it was to be aborted.
    """
    due = run.records.workload.set_index("request_id")[[*OF_WORKLOAD]].astype(float)
    found = run.records.requests.join(due, on="request_id")
    found = found.sort_values(["repeat", "arrival_pass", "arrival_s"], kind="stable")
    wrong = pd.Series(False, found.index)
    for repeat, rows in found.groupby("repeat"):
        starts_s = run.steps.loc[run.steps["repeat"] == repeat, "start_s"]
        came = starts_s.searchsorted(rows["arrival_s"] - TOLERANCE_S)
        left = starts_s.searchsorted(rows["finished_s"] - TOLERANCE_S)
        idle_s, skipped = 0.0, 0.0  # all requests until here have ended by then
        for at, passes, ended in zip(rows.index, came, left, strict=True):
            row = rows.loc[at]
            if row["arrival_s"] >= idle_s - TOLERANCE_S:
                skipped = max(skipped, row["arrival_pass"] - passes)
            limit = row["abort_pass"] - skipped
            wrong[at] = passes != row["arrival_pass"] - skipped
            wrong[at] |= ended != max(limit, passes) if row["aborted"] else ended > limit
            idle_s = max(idle_s, row["finished_s"])
    return bad_rows(found, wrong, lambda _: "did not come, or end, before the pass that was due")

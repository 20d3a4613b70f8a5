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
LISTS = ("prompt_token_ids", "output_token_ids", "block_ids", "text_ids", "after")
EXACT = tuple(name for name in WORKLOAD.names if name not in (*ROUNDED, *LISTS))


def has_all_settings(run: RunTables) -> bool:
    """Whether the settings have all sections, so that the requests can be made of them."""
    required = {name for name, field in Experiment.model_fields.items() if field.is_required()}
    return required <= run.records.settings.keys()


def workload_differs(run: RunTables) -> Violations | None:
    """The requests are those that the settings and the seed give: arrivals, prompts and outputs.

    This includes the requests that each follows, and output tokens that the workload gives. Not
    applicable if the workload's file is not on this machine.
    """
    try:
        expected = to_frame(build(experiment_of(run.records)))
    except BadInput:
        return None
    recorded = run.records.workload.reset_index(drop=True)
    if len(recorded) != len(expected):
        return Violations(1, f"{len(recorded)} requests, the settings give {len(expected)}")
    wrong = np.zeros(len(expected), bool)
    for column in EXACT:
        wrong |= differ(recorded[column], expected[column])
    for column in ROUNDED:
        found_s, due_s = (frame[column].astype(float) for frame in (recorded, expected))
        wrong |= ~np.isclose(found_s, due_s, rtol=ROUNDING, atol=0, equal_nan=True)
    for column in LISTS:
        pairs = zip(recorded[column], expected[column], strict=True)
        wrong |= [not np.array_equal(value, other) for value, other in pairs]
    return bad_rows(recorded, wrong, lambda _: "not the request that the settings give")


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
    turns, due_s = requests[requests["request_id"].isin(follows)], []
    for repeat, name in zip(turns["repeat"], turns["request_id"], strict=True):
        after, think_s = follows[name]
        known_s = [ends_s[repeat, other] for other in after if (repeat, other) in ends_s]
        due_s.append(think_s + max(known_s, default=math.nan))
    wrong = ~((turns["arrival_s"] - due_s).abs() <= TOLERANCE_S)
    words = "comes at {arrival_s:.6f} s, what it follows and its think time end at {due_s:.6f} s"
    return bad_rows(turns, wrong, lambda r: words.format_map(r), due_s=due_s)


def known_output_differs(run: RunTables) -> Violations:
    """A served request has been given the tokens that the workload has for it."""
    outputs = run.records.workload.set_index("request_id")["output_token_ids"].dropna()
    expected: pd.Series = outputs.map(sha256_of_tokens)
    rows = run.records.served
    rows = rows[rows["request_id"].isin(expected.index)]
    wrong = differ(rows["output_sha256"], rows["request_id"].map(expected))
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
    limits = run.records.workload.set_index("request_id")[[*OF_WORKLOAD]].astype(float)
    requests = run.records.requests.join(limits, on="request_id")
    requests = requests.sort_values(["repeat", "arrival_pass", "arrival_s"], kind="stable")
    wrong = pd.Series(False, requests.index)
    for repeat, rows in requests.groupby("repeat"):
        starts_s = run.steps.loc[run.steps["repeat"] == repeat, "start_s"]
        came = starts_s.searchsorted(rows["arrival_s"] - TOLERANCE_S)
        ends = starts_s.searchsorted(rows["finished_s"] - TOLERANCE_S)
        idle_s, skipped = 0.0, 0.0  # all requests until here have ended by then
        for label, passes, ended in zip(rows.index, came, ends, strict=True):
            row = rows.loc[label]
            if row["arrival_s"] >= idle_s - TOLERANCE_S:
                skipped = max(skipped, row["arrival_pass"] - passes)
            limit = row["abort_pass"] - skipped
            wrong[label] = passes != row["arrival_pass"] - skipped
            wrong[label] |= ended != max(limit, passes) if row["aborted"] else ended > limit
            idle_s = max(idle_s, row["finished_s"])
    return bad_rows(requests, wrong, lambda _: "did not come, or end, before the pass that was due")

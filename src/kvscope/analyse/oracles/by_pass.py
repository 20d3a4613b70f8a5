"""The oracle of requests that come, and are aborted, before passes that the workload names."""

import pandas as pd

from kvscope.analyse.oracles.run_tables import TOLERANCE_S, RunTables, bad_rows
from kvscope.oracle import Violations

OF_WORKLOAD = ("arrival_pass", "abort_pass")


def comes_before_passes(run: RunTables) -> bool:
    """Whether requests come before passes, whatever the time is."""
    return bool(run.records.workload["arrival_pass"].notna().any())


def arrival_pass_wrong(run: RunTables) -> Violations:
    """A request comes after as many passes as the workload says, and is aborted after as many.

    Where no request was left, the passes until the next one comes are skipped. One that has ended
    with its last token has done so before it was to be aborted.
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

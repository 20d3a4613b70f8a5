"""Oracles of whole repeats: they are those that the run's own clock saw."""

import pandas as pd

from kvscope.analyse.oracles.run_tables import (
    OF_PASS,
    TOLERANCE_S,
    RunTables,
    bad_rows,
    combine,
)
from kvscope.oracle import NONE, Violations

NANOSECONDS = 1e-9
ENDING_S, ENDING_SHARE = 0.050, 0.02
"""What may lie between a repeat's last token and its end: so long, and such a share of it."""


def repeats_differ(run: RunTables) -> Violations | None:
    """The repeats are those of run.json, one after the other, none twice, each as long as there.

    There stand the times of the clock that was read around a repeat, whatever its passes say.
    """
    told = run.facts.get("clock", {}).get("repeats")
    if told is None:
        return None
    clock = pd.DataFrame(told, columns=["repeat", "start_ns", "duration_s"]).set_index("repeat")
    repeats = clock.join(_last_s(run), how="outer").reset_index()
    took, last = repeats["duration_s"], repeats["last_s"]
    long = (last > took + TOLERANCE_S) | (took - last > ENDING_S + ENDING_SHARE * took)
    begin = repeats["start_ns"] * NANOSECONDS
    overlap = begin < (begin + took).shift() - TOLERANCE_S
    return combine(
        bad_rows(
            repeats, took.isna() | last.isna(), lambda _: "not in run.json, or not in a table"
        ),
        bad_rows(
            repeats, long, lambda r: f"{r['last_s']:.6f} s, by the clock {r['duration_s']:.6f}"
        ),
        bad_rows(repeats, overlap, lambda _: "begins before the one before has ended"),
        _copied(run) if run.measured else NONE,
    )


def _last_s(run: RunTables) -> pd.Series:
    """By repeat: when its last pass or request ended."""
    of_passes = run.steps.groupby("repeat")["end_s"].max()
    of_requests = run.requests.groupby("repeat")["finished_s"].max()
    last: pd.Series = pd.concat([of_passes, of_requests], axis=1).max(axis=1)
    return last.rename("last_s")


def _copied(run: RunTables) -> Violations:
    """Repeats whose passes took to the nanosecond what those of an earlier one took."""
    took = run.steps.sort_values(OF_PASS).groupby("repeat")["duration_s"].agg(tuple).reset_index()
    return bad_rows(took, took["duration_s"].duplicated(), lambda _: "a copy of an earlier repeat")

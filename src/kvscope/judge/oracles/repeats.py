"""Oracles of whole repeats: tables and run.json agree on their number, order and duration."""

import numpy as np
import pandas as pd

from kvscope.judge.oracles.run_tables import (
    NANOSECONDS,
    OF_PASS,
    TOLERANCE_S,
    RunTables,
    bad_rows,
    combine,
)
from kvscope.judge.oracles.waiting import without_cpu_s
from kvscope.tables.oracle import NONE, Violations
from kvscope.tables.run_data import of_repeat

ENDING_S, ENDING_SHARE = 0.050, 0.02
"""Allowed time between a repeat's last token and its end: a constant and a share of the repeat."""


def repeats_differ(run: RunTables) -> Violations | None:
    """The repeats in the tables are those of run.json, in sequence, and as long as stated there.

    run.json has the clock readings around each repeat, independent of the times of its passes. A
    repeat may end later by the time for which it waited for a CPU. No two repeats have identical
    pass durations.
    """
    if not run.record.states("clock"):
        return None
    rows = [(entry.repeat, entry.start_ns, entry.duration_s) for entry in run.record.clock.repeats]
    clock = pd.DataFrame(rows, columns=["repeat", "start_ns", "duration_s"]).set_index("repeat")
    repeats = clock.join(_last_s(run), how="outer").reset_index()
    took, last = repeats["duration_s"], repeats["last_s"]
    ending = ENDING_S + ENDING_SHARE * took + repeats["repeat"].map(without_cpu_s(run))
    long = (last > took + TOLERANCE_S) | (took - last > ending)
    begin = repeats["start_ns"] * NANOSECONDS
    overlap = begin < (begin + took).shift() - TOLERANCE_S
    return combine(
        bad_rows(
            repeats, took.isna() | last.isna(), lambda _: "missing from run.json or from the tables"
        ),
        bad_rows(
            repeats,
            long,
            lambda r: f"{r['last_s']:.6f} s by its passes, by the clock {r['duration_s']:.6f}",
        ),
        bad_rows(repeats, overlap, lambda _: "begins before the previous repeat ends"),
        _copied(run) if run.by_clock else NONE,
    )


def _last_s(run: RunTables) -> pd.Series:
    """`last_s`, indexed by repeat: the end of its last pass or request."""
    last = {
        number: np.fmax(
            of_repeat(run.steps, number)["end_s"].max(), repeat.requests["finished_s"].max()
        )
        for number, repeat in run.repeats.items()
    }
    return pd.Series(last, name="last_s", dtype=float).rename_axis("repeat")


def _copied(run: RunTables) -> Violations:
    """Repeats whose passes have exactly the durations of those of an earlier repeat."""
    took = run.steps.sort_values(OF_PASS).groupby("repeat")["duration_s"].agg(tuple).reset_index()
    return bad_rows(
        took,
        took["duration_s"].duplicated(),
        lambda _: "pass durations identical to those of an earlier repeat",
    )

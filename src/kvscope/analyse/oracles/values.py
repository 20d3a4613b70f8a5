"""Oracles of single values and of keys: nothing twice, nothing missing, nothing below zero."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from kvscope import tables
from kvscope.analyse.oracles.run_tables import (
    OF_PASS,
    OF_REQUEST,
    RunTables,
    bad_rows,
    combine,
)
from kvscope.arraytypes import Bools
from kvscope.oracle import Violations

KEYS = {
    "workload": ["request_id"],
    "requests": OF_REQUEST,
    "steps": OF_PASS,
    "batch": [*OF_REQUEST, "step"],
    "preemptions": [*OF_REQUEST, "step", "event"],
    "layers": [*OF_PASS, "layer"],
}
OF_A_COPY = {"swap_out_s", "swap_in_s", "copy_start_s", "copy_end_s"}
# Columns that need not have a value in every row.
NULLABLE = {
    "requests": {"first_scheduled_s", "first_token_s"},  # of one that was given up before
    "preemptions": {"wait_s", "recomputed_tokens"} | OF_A_COPY,
}
UNKNOWN_TO_OTHERS = {"schedule_s", "forward_s", "bytes", "time_s"}
"""Columns that published runs may leave without a value."""


def row_repeated(run: RunTables) -> Violations:
    """No request, pass, row of a batch, preemption or layer is recorded twice."""
    return combine(
        *(_bad(name, frame, frame.duplicated(KEYS[name]), "twice") for name, frame in _frames(run))
    )


def value_missing(run: RunTables) -> Violations:
    """Every row has a finite value in every column where one is due."""
    return combine(*(_missing(run, name, frame) for name, frame in _frames(run)))


def _missing(run: RunTables, name: str, frame: pd.DataFrame) -> Violations:
    optional = NULLABLE.get(name, set()) | (UNKNOWN_TO_OTHERS if run.imported else set())
    due = [column for column in tables.TABLES[name].names if column not in optional]
    absent = frame[due].isna() | frame[due].isin([np.inf, -np.inf])
    return _bad_cell(name, frame, absent, "has no finite value")


def value_negative(run: RunTables) -> Violations:
    """No time, duration, size or count is below zero."""
    return combine(
        *(
            _bad_cell(name, frame, frame.select_dtypes("number") < 0, "is below zero")
            for name, frame in _frames(run)
        )
    )


def time_source_differs(run: RunTables) -> Violations | None:
    """Every time comes from where run.json says."""
    source = run.facts.get("time_source")
    if source is None:
        return None
    return combine(
        *(
            _bad(name, frame, frame["time_source"] != source, f"not of {source} times")
            for name, frame in _frames(run)
            if "time_source" in frame
        )
    )


def row_without_owner(run: RunTables) -> Violations:
    """Every row names a request that was asked for, and a pass that there was.

    The passes of a repeat are numbered from 0, and every repeat has every request of the workload.
    """
    passes = pd.MultiIndex.from_frame(run.steps[OF_PASS])
    asked = set(run.records.workload["request_id"])
    found: list[Violations] = [_gap(run)]
    for name, frame in _frames(run):
        if "step" in frame and name != "steps":
            strange = ~pd.MultiIndex.from_frame(frame[OF_PASS]).isin(passes)
            found.append(_bad(name, frame, strange, "no such pass"))
        if "request_id" in frame:
            strange = ~frame["request_id"].isin(asked).to_numpy()
            found.append(_bad(name, frame, strange, "nobody asked for it"))
    counts = run.requests.groupby("repeat").size().rename("requests").reset_index()
    few = counts["requests"] != len(asked)
    found.append(bad_rows(counts, few, lambda row: f"{row['requests']} of {len(asked)} requests"))
    return combine(*found)


def _bad(name: str, frame: pd.DataFrame, bad: Bools | pd.Series, why: str) -> Violations:
    return bad_rows(frame, bad, lambda _: f"{name}: {why}")


def _bad_cell(name: str, frame: pd.DataFrame, bad: pd.DataFrame, why: str) -> Violations:
    """Rows with a bad cell, and the column of the first one."""
    rows = bad.any(axis=1).to_numpy()
    column = str(bad.columns[bad.to_numpy()[rows.argmax()].argmax()]) if rows.any() else ""
    return _bad(name, frame, rows, f"{column} {why}")


def _gap(run: RunTables) -> Violations:
    wrong = run.steps["step"] != run.steps.groupby("repeat").cumcount()
    return bad_rows(run.steps, wrong, lambda _: "passes are not numbered from 0 without a gap")


def _frames(run: RunTables) -> Iterator[tuple[str, pd.DataFrame]]:
    for table in tables.HOST_TABLES:
        yield table.name, getattr(run.records, table.name)

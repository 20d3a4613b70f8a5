"""Oracles of single values and of keys: nothing twice, nothing missing, nothing below zero."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from kvscope import tables
from kvscope.analyse.oracles.run import OF_PASS, OF_REQUEST, Run, both, where
from kvscope.oracle import NONE, Violations

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


def row_repeated(run: Run) -> Violations | None:
    """No request, pass, row of a batch, preemption or layer is recorded twice."""
    if run.imported:
        return None  # published preemptions do not say whose they are
    return both(
        *(
            where(frame, frame.duplicated(KEYS[name]), lambda _, name=name: f"twice in {name}")
            for name, frame in _frames(run)
        )
    )


def value_missing(run: Run) -> Violations | None:
    """Every row has a finite value in every column where one is due."""
    return both(*(_missing(run, name, frame) for name, frame in _frames(run)))


def _missing(run: Run, name: str, frame: pd.DataFrame) -> Violations:
    optional = NULLABLE.get(name, set()) | (UNKNOWN_TO_OTHERS if run.imported else set())
    due = [column for column in tables.TABLES[name].names if column not in optional]
    absent = frame[due].isna() | frame[due].isin([np.inf, -np.inf])
    return where(
        frame, absent.any(axis=1), lambda row: f"{name}.{_first(row, due)} has no finite value"
    )


def _first(row: object, columns: list[str]) -> str:
    values = pd.Series(row)[columns]
    return str((values.isna() | values.isin([np.inf, -np.inf])).idxmax())


def value_negative(run: Run) -> Violations | None:
    """No time, duration, size or count is below zero."""
    return both(*(_negative(name, frame) for name, frame in _frames(run) if not run.imported))


def _negative(name: str, frame: pd.DataFrame) -> Violations:
    numbers = frame.select_dtypes("number")
    below = numbers < 0
    return where(
        frame,
        below.any(axis=1),
        lambda row: "{0}.{1} is {2}".format(  # noqa: UP032
            name, *next((c, row[c]) for c in numbers if row[c] < 0)
        ),
    )


def row_without_owner(run: Run) -> Violations | None:
    """Every row names a request that was asked for, and a pass that there was.

    The passes of a repeat are numbered from 0, and every repeat has every request of the workload.
    """
    if run.imported:
        return None
    passes = pd.MultiIndex.from_frame(run.steps[OF_PASS])
    asked = set(run.records.workload["request_id"])
    found: list[Violations] = [NONE if run.numbered else _gap(run)]
    for name, frame in _frames(run):
        if "step" in frame and name != "steps":
            strange = ~pd.MultiIndex.from_frame(frame[OF_PASS]).isin(passes)
            found.append(where(frame, strange, lambda _, name=name: f"{name} has no such pass"))
        if "request_id" in frame:
            strange = ~frame["request_id"].isin(asked).to_numpy()
            found.append(where(frame, strange, lambda _, name=name: f"{name}: nobody asked for it"))
    counts = run.requests.groupby("repeat").size().rename("requests").reset_index()
    few = counts["requests"] != len(asked)
    found.append(where(counts, few, lambda row: f"{row['requests']} of {len(asked)} requests"))
    return both(*found)


def _gap(run: Run) -> Violations:
    wrong = run.steps["step"] != run.steps.groupby("repeat").cumcount()
    return where(run.steps, wrong, lambda _: "passes are not numbered from 0 without a gap")


def _frames(run: Run) -> Iterator[tuple[str, pd.DataFrame]]:
    records = run.records
    yield "workload", records.workload
    yield "requests", records.requests
    yield "steps", records.steps
    yield "batch", records.batch
    yield "preemptions", records.preemptions
    yield "layers", run.layers

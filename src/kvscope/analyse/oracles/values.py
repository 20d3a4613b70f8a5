"""Oracles of rows and values: unique keys, known requests and passes, finite values."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from kvscope import tables
from kvscope.analyse.oracles.run_tables import (
    OF_PASS,
    RunTables,
    bad_rows,
    combine,
)
from kvscope.arraytypes import Bools
from kvscope.copies import clock_of
from kvscope.evidence import CLOCK, PASSES
from kvscope.oracle import Violations
from kvscope.tables.column import RUNS, TOLD, Table

OF_VICTIMS = ["shared_blocks", "scheduled_tokens"]
"""Columns of `preemptions` that all preemptions of a run have, or none."""
OF_RESUMPTIONS = ["wait_s", "recomputed_tokens", "hit_tokens", "own_hit_tokens"]
"""Columns of `preemptions` that all resumptions of a run have, or none."""


def rows_wrong(run: RunTables) -> Violations:
    """Rows and values are those that the tables declare.

    No two rows have the same key. A column that must not be null has a finite value in every row;
    one whose evidence the run lacks has a value in every row or in none, unless it is told. No
    time, duration, size or count is negative. Every row names a request of the workload and a
    recorded pass; passes are numbered from 0, and every repeat has every request. A request
    arrives by itself, after others, or before a pass. Without all passes, only whether values are
    missing is known.
    """
    if not run.evidence.issuperset((PASSES, CLOCK)):
        return _missing(run)
    return combine(_repeated(run), _missing(run), _negative(run), _without_owner(run))


def _repeated(run: RunTables) -> Violations:
    return combine(
        *(
            _bad(table.name, frame, frame.duplicated(table.keys), "duplicate row")
            for table, frame in _tables(run)
        )
    )


def _missing(run: RunTables) -> Violations:
    requests = run.records.workload
    nowhere = requests[["arrival_s", "after", "arrival_pass"]].isna().all(axis=1)
    return combine(
        *(_missing_in(run, table, frame) for table, frame in _tables(run)),
        _bad(
            "workload",
            requests,
            nowhere,
            "has no arrival_s, follows no request and comes before no pass",
        ),
        _missing_in_some("preemptions", run.victims, OF_VICTIMS),
        _missing_in_some("preemptions", run.resumptions, OF_RESUMPTIONS),
    )


def _missing_in(run: RunTables, table: Table, frame: pd.DataFrame) -> Violations:
    known = {column.name: run.evidence >= {*column.evidence} for column in table.columns}
    always = [column for column in table.columns if not column.null]
    due = [column.name for column in always if known[column.name]]
    together = [column.name for column in table.columns if column.null == RUNS]
    together += [c.name for c in always if not known[c.name] and c.role != TOLD]
    absent = frame[due].isna() | frame[due].isin([np.inf, -np.inf])
    return combine(
        _bad_cell(table.name, frame, absent, "has no finite value"),
        _missing_in_some(table.name, frame, together),
    )


def _missing_in_some(name: str, frame: pd.DataFrame, columns: list[str]) -> Violations:
    absent = frame[columns].isna() & frame[columns].notna().any()
    return _bad_cell(name, frame, absent, "has no value, as other rows have")


def _negative(run: RunTables) -> Violations:
    return combine(
        *(
            _bad_cell(table.name, frame, frame.select_dtypes("number") < 0, "is negative")
            for table, frame in _tables(run)
        )
    )


def time_source_differs(run: RunTables) -> Violations:
    """The `time_source` of every row is that of run.json, the `clock` of a copy its device's."""
    source = run.record.time_source
    of_run = f"time_source is not {source}" if source else "time_source is not in run.json"
    copies, clock = run.records.transfers, clock_of(run.record)
    return combine(
        _bad("transfers", copies, copies["clock"] != clock, f"clock is not {clock}"),
        *(
            _bad(table.name, frame, frame["time_source"] != source, of_run)
            for table, frame in _tables(run)
            if "time_source" in frame
        ),
    )


def _without_owner(run: RunTables) -> Violations:
    passes = pd.MultiIndex.from_frame(run.steps[OF_PASS])
    known = set(run.records.workload["request_id"])
    found: list[Violations] = [_gap(run)]
    for table, frame in _tables(run):
        name = table.name
        if "step" in frame and name != "steps":
            strange = ~pd.MultiIndex.from_frame(frame[OF_PASS]).isin(passes)
            found.append(_bad(name, frame, strange, "no such pass"))
        if "request_id" in frame:
            named = frame["request_id"].notna() | (name != tables.TRANSFERS.name)
            strange = (named & ~frame["request_id"].isin(known)).to_numpy()
            found.append(_bad(name, frame, strange, "not a request of the workload"))
    counts = run.records.requests.groupby("repeat").size().rename("requests").reset_index()
    few = counts["requests"] != len(known)
    found.append(bad_rows(counts, few, lambda row: f"{row['requests']} of {len(known)} requests"))
    return combine(*found)


def _bad(name: str, frame: pd.DataFrame, bad: Bools | pd.Series, why: str) -> Violations:
    return bad_rows(frame, bad, lambda _: f"{name}: {why}")


def _bad_cell(name: str, frame: pd.DataFrame, bad: pd.DataFrame, why: str) -> Violations:
    """The rows that have a bad cell; the first is described by its column."""
    rows = bad.any(axis=1).to_numpy()
    column = str(bad.columns[bad.to_numpy()[rows.argmax()].argmax()]) if rows.any() else ""
    return _bad(name, frame, rows, f"{column} {why}")


def _gap(run: RunTables) -> Violations:
    wrong = run.steps["step"] != run.steps.groupby("repeat").cumcount()
    return bad_rows(
        run.steps, wrong, lambda _: "the passes of the repeat are not numbered 0, 1, 2, …"
    )


def _tables(run: RunTables) -> Iterator[tuple[Table, pd.DataFrame]]:
    for table in tables.HOST_TABLES:
        yield table, getattr(run.records, table.name)
    for name, added in run.records.added_tables.items():
        yield added.table, run.records.added(name)

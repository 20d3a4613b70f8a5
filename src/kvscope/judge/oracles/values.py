"""Oracles of rows and values: unique keys, known requests and passes, finite values."""

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from kvscope import tables
from kvscope.base.arraytypes import Bools
from kvscope.judge.oracles.run_tables import OF_PASS, RunTables, bad_rows, combine
from kvscope.tables.added import added_tables
from kvscope.tables.column import RUNS, TOLD, Table
from kvscope.tables.copies import clock_of
from kvscope.tables.evidence import CLOCK, PASSES
from kvscope.tables.oracle import NONE, Violations

OF_VICTIMS = ["shared_blocks", "scheduled_tokens"]
"""Columns of `preemptions` that all preemptions of a run have, or none."""
OF_RESUMPTIONS = ["wait_s", "recomputed_tokens", "hit_tokens", "own_hit_tokens"]
"""Columns of `preemptions` that all resumptions of a run have, or none."""


def rows_wrong(run: RunTables) -> Violations:
    """Rows and values are those that the tables declare.

    No two rows have the same key. A column that must not be null has a finite value in every row;
    one whose evidence the run lacks has a value in every row or in none, unless it is told. No
    time, duration, size or count is negative, and a request of a pass has a token; a text is one
    of those that its column may have. Every row names a request of the workload and a recorded
    pass; passes are numbered from 0, and every repeat has every request. A request arrives at a
    time, after other requests of the workload, or before a pass. If passes are missing, only
    missing values are checked.
    """
    if not run.evidence.issuperset((PASSES, CLOCK)):
        return _missing(run)
    return combine(
        *(_repeated(run), _missing(run), _below(run), _other_words(run), _without_owner(run))
    )


def _repeated(run: RunTables) -> Violations:
    return combine(
        *(
            _bad(table.name, frame, frame.duplicated(table.keys), "duplicate row")
            for table, frame in _tables(run)
        )
    )


def _missing(run: RunTables) -> Violations:
    requests = run.records.workload
    comes = [requests[name].notna() for name in ("arrival_s", "after", "arrival_pass")]
    nowhere = ~np.logical_or.reduce(comes)
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
    has_evidence = {column.name: run.evidence >= {*column.evidence} for column in table.columns}
    always = [column for column in table.columns if not column.null]
    expected = [column.name for column in always if has_evidence[column.name]]
    together = [column.name for column in table.columns if column.null == RUNS]
    together += [c.name for c in always if not has_evidence[c.name] and c.role != TOLD]
    absent = {name: _is_absent(frame[name]) for name in expected}
    return combine(
        _bad_cell(table.name, frame, absent, "has no finite value"),
        _missing_in_some(table.name, frame, together),
    )


def _is_absent(column: pd.Series) -> Bools:
    """Mask of the rows in which a column has no finite value."""
    present = np.isfinite(column.to_numpy()) if column.dtype.kind == "f" else column.notna()
    return ~np.asarray(present, bool)


def _missing_in_some(name: str, frame: pd.DataFrame, columns: list[str]) -> Violations:
    absent = {column: frame[column].isna().to_numpy() for column in columns}
    some = {column: cells for column, cells in absent.items() if not cells.all()}
    return _bad_cell(name, frame, some, "has no value, as other rows have")


def _below(run: RunTables) -> Violations:
    violations: list[Violations] = []
    for table, frame in _tables(run):
        for least in {column.least for column in table.columns}:
            numbers = [c.name for c in table.columns if c.least == least]
            cells = {
                name: frame[name].to_numpy() < least
                for name in numbers
                if frame[name].dtype.kind in "if"
            }
            why = f"is less than {least}" if least else "is negative"
            violations.append(_bad_cell(table.name, frame, cells, why))
    return combine(*violations)


def _other_words(run: RunTables) -> Violations:
    return combine(
        *(
            _bad(
                table.name,
                frame,
                frame[column.name].notna() & ~frame[column.name].isin(column.words),
                f"{column.name} is none of {', '.join(column.words)}",
            )
            for table, frame in _tables(run)
            for column in table.columns
            if column.words
        )
    )


def time_source_differs(run: RunTables) -> Violations:
    """The `time_source` of every row is that of run.json, the `clock` of a copy its device's."""
    source = run.record.time_source
    of_run = f"time_source is not {source}" if source else "time_source is not in run.json"
    copies, clock = run.records.copies, clock_of(run.record)
    return combine(
        _bad("copies", copies, copies["clock"] != clock, f"clock is not {clock}"),
        *(
            _bad(table.name, frame, frame["time_source"] != source, of_run)
            for table, frame in _tables(run)
            if "time_source" in frame
        ),
    )


def _without_owner(run: RunTables) -> Violations:
    names = set(run.records.workload["request_id"])
    violations: list[Violations] = [_gap(run)]
    for table, frame in _tables(run):
        name = table.name
        if "step" in frame and name != "steps":
            violations.append(_bad(name, frame, ~_has_pass(run, frame), "no such pass"))
        if "request_id" in frame:
            named = frame["request_id"].notna() | (name != tables.TRANSFERS.name)
            strange = (named & ~frame["request_id"].isin(names)).to_numpy()
            violations.append(_bad(name, frame, strange, "not a request of the workload"))
    followers = run.records.workload.dropna(subset="after")
    apart = followers["after"].map(lambda others: not names.issuperset(np.atleast_1d(others)))
    why = "follows a request that is not in it"
    violations.append(_bad("workload", followers, apart.to_numpy(bool), why))
    numbers, served = np.unique(run.records.requests["repeat"].dropna(), return_counts=True)
    words = f"{{served}} of {len(names)} requests"
    repeats, few = pd.DataFrame({"repeat": numbers}), served != len(names)
    violations.append(bad_rows(repeats, few, lambda row: words.format_map(row), served=served))
    return combine(*violations)


def _has_pass(run: RunTables, frame: pd.DataFrame) -> Bools:
    """Whether the pass of each row was recorded."""
    repeats, steps = (frame[name].to_numpy() for name in OF_PASS)
    recorded, mask = run.steps["step"].to_numpy(), np.zeros(len(frame), bool)
    for number, passes in run.passes.items():
        mask |= (repeats == number) & np.isin(steps, recorded[passes])
    return mask


def _bad(name: str, frame: pd.DataFrame, bad: Bools | pd.Series, why: str) -> Violations:
    return bad_rows(frame, bad, lambda _: f"{name}: {why}")


def _bad_cell(name: str, frame: pd.DataFrame, bad: Mapping[str, Bools], why: str) -> Violations:
    """The rows with a bad cell in any of the columns; the first is described by its first bad
    cell."""
    rows = np.logical_or.reduce([np.zeros(len(frame), bool), *bad.values()])
    if not rows.any():
        return NONE
    first = rows.argmax()
    column = next(column for column, cells in bad.items() if cells[first])
    return _bad(name, frame, rows, f"{column} {why}")


def _gap(run: RunTables) -> Violations:
    steps = run.steps["step"].to_numpy()
    wrong = np.zeros(len(steps), bool)
    for passes in run.passes.values():
        wrong[passes] = steps[passes] != np.arange(passes.stop - passes.start)
    return bad_rows(
        run.steps, wrong, lambda _: "the passes of the repeat are not numbered 0, 1, 2, …"
    )


def _tables(run: RunTables) -> Iterator[tuple[Table, pd.DataFrame]]:
    """The tables that have rows."""
    frames = [(table, getattr(run.records, table.name)) for table in tables.HOST_TABLES]
    added, names = added_tables(), run.records.added_names
    frames += [(added[name].table, run.records.added(name)) for name in names]
    yield from ((table, frame) for table, frame in frames if len(frame))

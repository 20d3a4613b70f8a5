"""The oracle of tables of other packages: what follows from other columns agrees with it."""

import math
from collections.abc import Iterator
from typing import Any

import pandas as pd

from kvscope.base.errors import KvscopeError
from kvscope.judge.oracles.run_tables import RunTables
from kvscope.judge.twin.columns import Columns
from kvscope.tables.added import AddedTable, added_tables
from kvscope.tables.added_values import due, with_derived
from kvscope.tables.column import DERIVED, WITNESSED
from kvscope.tables.oracle import Violations
from kvscope.tables.run_view import RunView

PRECISION = 1e-9
"""Relative tolerance for floats: sums may be computed in another order."""


def added_differ(run: RunTables) -> Violations:
    """Columns of other packages' tables have the values that their package computes for them.

    Witnessed columns follow from the run, derived columns from the other columns of their table.
    """
    names = judged_names(run.records)
    sentences = [words for name in names for words in _differing(run.records, name)]
    return Violations(len(sentences), sentences[0] if sentences else "")


def judged_names(records: RunView) -> list[str]:
    """The tables of other packages that a run has, but for those that its replay judges."""
    return [name for name in records.added_names if added_tables()[name].recorder]


def _differing(records: RunView, name: str) -> Iterator[str]:
    """A sentence for each cell, and each row, of which a table has another value than is due."""
    added = added_tables()[name]
    for repeat in records.repeats():
        stored = repeat.added(name).reset_index(drop=True)
        others = stored.drop(columns=added.columns(DERIVED))
        try:
            if added.follows is not None:
                yield from _cells(added, stored, due(added, repeat), added.columns(WITNESSED))
            yield from _cells(added, stored, with_derived(added, others), added.columns(DERIVED))
        except KvscopeError as error:  # of the package
            yield f"{error} (repeat {repeat.repeat})"


def _cells(
    added: AddedTable, stored: pd.DataFrame, wanted: pd.DataFrame, columns: list[str]
) -> Iterator[str]:
    """A sentence for each of these cells, and each row, of which only one table has the value."""
    keys, name = added.table.keys, added.table.name
    stored_rows, expected = (
        {row[: len(keys)]: row[len(keys) :] for row in Columns(frame).rows(*keys, *columns)}
        for frame in (stored, wanted)
    )
    for key in stored_rows | expected:
        place = ", ".join(f"{key_name} {value}" for key_name, value in zip(keys, key, strict=True))
        if key not in stored_rows:
            yield f"{name} lacks a row that its package gives ({place})"
        elif key not in expected:
            yield f"{name} has a row that its package does not give ({place})"
        elif stored_rows[key] != expected[key]:
            for column, value, other in zip(columns, stored_rows[key], expected[key], strict=True):
                if not _same(value, other):
                    yield f"{name}.{column} is {value}, its package gives {other} ({place})"


def _same(found: Any, due: Any) -> bool:
    if isinstance(found, float | int) and isinstance(due, float):
        return math.isclose(found, due, rel_tol=PRECISION, abs_tol=PRECISION)
    return bool(found == due)

"""The oracle of tables of other packages: what follows from other columns agrees with it."""

from collections.abc import Iterator

import pandas as pd

from kvscope.analyse.oracles.run_tables import RunTables
from kvscope.analyse.records import Records
from kvscope.oracle import Violations
from kvscope.tables.added import AddedTable
from kvscope.tables.column import DERIVED, WITNESSED


def added_differ(run: RunTables) -> Violations:
    """Columns of other packages' tables are what their package works out of what is told.

    Witnessed ones as they follow from the run, derived ones from the other columns of their table.
    """
    found = [words for name in run.records.added_names for words in _differing(run.records, name)]
    return Violations(len(found), found[0] if found else "")


def _differing(records: Records, name: str) -> Iterator[str]:
    added, stored = records.added_tables[name], records.added(name)
    if added.follows is not None:
        parts = [added.follows(view).assign(repeat=view.repeat) for view in records.repeats()]
        due = pd.concat(parts, ignore_index=True)
        yield from _cells(added, stored, due, added.columns(WITNESSED))
    derived = added.rows(stored.drop(columns=added.columns(DERIVED)))
    yield from _cells(added, stored, derived, added.columns(DERIVED))


def _cells(
    added: AddedTable, stored: pd.DataFrame, due: pd.DataFrame, columns: list[str]
) -> Iterator[str]:
    """A sentence for each cell, and each row, of which only one table has the value."""
    keys, name = added.table.keys, added.table.name
    both = stored.merge(due[[*keys, *columns]], on=keys, how="outer", suffixes=("", "_due"))
    for _, row in both.iterrows():
        place = ", ".join(f"{key} {row[key]}" for key in keys)
        for column in columns:
            found, expected = row[column], row[f"{column}_due"]
            if found != expected and not (pd.isna(found) and pd.isna(expected)):
                yield f"{name}.{column} is {found}, its package gives {expected} ({place})"

"""Columns that other packages compute for their tables: derived and witnessed columns."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pandas as pd

from kvscope.base import plugins
from kvscope.base.errors import KvscopeError
from kvscope.base.reading import describe_error
from kvscope.tables.added import GROUP, KEYS, AddedTable
from kvscope.tables.column import DERIVED, KEY, WITNESSED
from kvscope.tables.files import to_arrow


def with_derived(added: AddedTable, rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of a repeat, which have the other columns, with the derived columns.

    KvscopeError if `derive` fails, lacks a column, or gives other rows or another order.
    """
    keys, names = added.table.keys, added.columns(DERIVED)
    with blamed(added, "`derive`"):
        derived = added.derive(rows.copy())
        _require_columns(derived, [*keys, *names])
        if any(derived[key].tolist() != rows[key].tolist() for key in keys):
            raise KvscopeError("returned other rows than it was given, or in another order")
        values = {name: derived[name].array for name in names}
        typed: pd.DataFrame = to_arrow(added.table, rows.assign(**values)).to_pandas()
    return typed


def due(added: AddedTable, repeat: Any) -> pd.DataFrame:
    """The keys and the witnessed columns as they follow from a run of one repeat.

    KvscopeError if `follows` fails, lacks a column, or repeats a row.
    """
    assert added.follows is not None
    names = added.columns(KEY, WITNESSED)
    columns = tuple(column for column in added.table.columns if column.name in names)
    with blamed(added, "`follows`"):
        witnessed = added.follows(repeat)
        _require_columns(witnessed, [name for name in names if name != KEYS[0]])
        rows = witnessed.assign(**{KEYS[0]: repeat.repeat})[names]
        if rows.duplicated(added.table.keys).any():
            raise KvscopeError("returned two rows of the same keys")
        typed: pd.DataFrame = to_arrow(replace(added.table, columns=columns), rows).to_pandas()
    return typed


def _require_columns(found: Any, names: list[str]) -> None:
    lacking = [name for name in names if name not in getattr(found, "columns", ())]
    if lacking:
        raise KvscopeError(f"returned no DataFrame with a column {lacking[0]!r}")


def words_of(added: AddedTable) -> str:
    """A table and its package, for an error's sentence."""
    name = added.table.name
    return f"table {name} of {plugins.origin(GROUP, name) or 'kvscope'}"


@contextmanager
def blamed(added: AddedTable, part: str) -> Iterator[None]:
    """Make a sentence (KvscopeError) of whatever a part of a table's package raises."""
    try:
        yield
    except (Exception, SystemExit) as error:
        is_sentence = isinstance(error, KvscopeError)
        words = str(error) if is_sentence else f"raised {describe_error(error)}"
        raise KvscopeError(f"{part} of {words_of(added)} {words}; fix its package") from error

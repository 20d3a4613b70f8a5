"""Makes the tables of other packages from the observations of their recorders in a repeat."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import pandas as pd
import pyarrow as pa

from kvscope.base.errors import KvscopeError
from kvscope.base.reading import one_line
from kvscope.engine.added import RowRecorder
from kvscope.engine.recording import Recording
from kvscope.tables.added import KEYS, AddedTable, added_tables
from kvscope.tables.added_values import blamed, with_derived
from kvscope.tables.column import DERIVED, Column

Row = Mapping[str, Any]


def added_rows(
    recording: Recording, repeat: int, seconds: Callable[[int], float]
) -> dict[str, pd.DataFrame]:
    """The tables of other packages of one repeat, by name.

    `seconds` converts an instant of the engine's clock. KvscopeError if a recorder fails, or gives
    other rows than its table declares.
    """
    return {
        name: _table(added_tables()[name], recorder, repeat, seconds)
        for name, recorder in recording.added.items()
    }


def _table(
    added: AddedTable, recorder: RowRecorder, repeat: int, seconds: Callable[[int], float]
) -> pd.DataFrame:
    with blamed(added, f"recorder {added.recorder}"):
        rows = [dict(row) for row in recorder.rows(seconds)]
        frame = _typed(added, rows, repeat)
    return with_derived(added, frame)


def _typed(added: AddedTable, rows: Sequence[Row], repeat: int) -> pd.DataFrame:
    """These rows of a repeat; KvscopeError names the first that the table does not declare."""

    def refuse(at: int, why: str) -> NoReturn:
        keys = (f", {key} {rows[at][key]!r:.60}" for key in added.table.keys if key in rows[at])
        raise KvscopeError(f"{why} (row {at}{''.join(keys)})")

    recorded = (column for column in added.table.columns if column.role != DERIVED)
    columns = [column for column in recorded if column.name != KEYS[0]]
    for number, row in enumerate(rows):
        for column in columns:
            if column.name not in row and not column.can_lack:
                refuse(number, f"gave a row without {column.name}")
        if strange := row.keys() - {column.name for column in columns}:
            refuse(
                number, f"gave a row with {min(strange)!r:.60}, which the table does not declare"
            )
    values = {KEYS[0]: pa.array([repeat] * len(rows), pa.int32())}
    for column in columns:
        cells = [row.get(column.name) for row in rows]
        if (array := _array(column, cells)) is None:
            number = next(i for i, value in enumerate(cells) if _array(column, [value]) is None)
            shown = one_line(repr(cells[number]), 60)
            refuse(number, f"gave {shown} as {column.name}, which must be of type {column.type}")
        values[column.name] = array
    frame: pd.DataFrame = pa.table(values).to_pandas()
    if (again := frame.duplicated(added.table.keys)).any():
        refuse(int(again.argmax()), "gave a second row of the same keys")
    return frame


def _array(column: Column, values: Sequence[Any]) -> pa.Array | None:
    """The values of a column; None if the column cannot have one of the values."""
    try:
        array = pa.array(values, column.type, from_pandas=True)
    except (ValueError, TypeError, OverflowError):
        return None
    if array.null_count and not column.can_lack:
        return None
    if pa.types.is_integer(column.type):  # of which Arrow would cut fractions off
        pairs = zip(values, array.to_pylist(), strict=True)
        return array if all(cell in (None, value) for value, cell in pairs) else None
    return array

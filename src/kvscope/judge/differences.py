"""Differences between the stored files of a stage and those that it writes again, one sentence
each.

Numbers are equal if they differ by rounding: sums of floats depend on the processor. Everything
else is compared exactly, values and not bytes, since Parquet's bytes depend on pyarrow's version.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kvscope import tables
from kvscope.base.arraytypes import Bools
from kvscope.base.files import read_json
from kvscope.base.reading import short_repr
from kvscope.tables.runfile import file_problem
from kvscope.tables.runschema import FileRecord

RELATIVE, ABSOLUTE = 1e-9, 1e-12
"""Rounding: a billionth of a number, or a thousandth of a nanosecond."""

ROWS = 1 << 18  # of both tables in memory
KEYS = ("metric", "repeat", "step", "layer", "request_id")
AGAIN = "when computed again"


def stage_differences(made: Path, again: Path, account: str) -> Iterator[str]:
    """Differences of a stage's account and files in `made` from those in `again`."""
    old, other = (read_json(place / account) for place in (made, again))
    files, new = old.pop("files"), other.pop("files")
    yield from value_differences(f"{made / account}: ", old, other)
    for name in sorted(files.keys() | new.keys()):
        if name not in new:
            yield f"{made / account}: files has {name}, which is not written {AGAIN}"
        elif name not in files:
            yield f"{made / account}: files lacks {name}, which is written {AGAIN}"
        elif (table := tables.TABLES.get(Path(name).stem)) is None:
            if file_problem(made / name, FileRecord(**new[name])):
                yield f"{made / name}: its content differs from what is written {AGAIN}"
        elif problem := tables.check_file(table, made / name):
            yield problem
        else:
            yield from table_differences(made / name, again / name)


def value_differences(place: str, one: Any, other: Any) -> Iterator[str]:
    """Differences of a value of a JSON file from another; `place` names the file and the key."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in dict.fromkeys([*one, *other]):
            if key not in other:
                yield f"{place}{key} is there, {AGAIN} it is absent"
            elif key not in one:
                yield f"{place}{key} is absent, {AGAIN} it is {short_repr(other[key])}"
            else:
                yield from value_differences(f"{place}{key}.", one[key], other[key])
    elif isinstance(one, list) and isinstance(other, list):
        if len(one) != len(other):
            yield f"{place.rstrip('.')} has {len(one)} values, {AGAIN} {len(other)}"
        for number, pair in enumerate(zip(one, other, strict=False)):
            yield from value_differences(f"{place}{number}.", *pair)
    elif not _same(one, other):
        yield f"{place.rstrip('.')} is {short_repr(one)}, {AGAIN} it is {short_repr(other)}"


def table_differences(made: Path, again: Path) -> Iterator[str]:
    """Differences of a table's file from another: the first row of each column."""
    with tables.reading(made), pq.ParquetFile(made) as old, pq.ParquetFile(again) as other:
        rows, names = old.metadata.num_rows, other.schema_arrow.names
        if old.schema_arrow.names != names:
            columns = ", ".join(old.schema_arrow.names)
            yield f"{made}: has the columns {columns}, {AGAIN} {', '.join(names)}"
        elif rows != other.metadata.num_rows:
            yield f"{made}: has {rows:,} rows, {AGAIN} {other.metadata.num_rows:,}"
        else:
            yield from _row_differences(made, old, other)


def _row_differences(made: Path, one: pq.ParquetFile, other: pq.ParquetFile) -> Iterator[str]:
    first: dict[str, str] = {}
    count: Counter[str] = Counter()
    before = 0
    for old, new in zip(_slices(one), _slices(other), strict=True):
        for name in old.column_names:
            rows = np.flatnonzero(differing(old[name], new[name]))
            if not len(rows):
                continue
            row = int(rows[0])
            was, now = (short_repr(part[name][row].as_py()) for part in (old, new))
            place = f"{made}: {name} of row {before + row:,}{_keys(new, row)}"
            first.setdefault(name, f"{place} is {was}, {AGAIN} it is {now}")
            count[name] += len(rows)
        before += old.num_rows
    for name, sentence in first.items():
        yield sentence + (f" (first of {count[name]:,} rows)" if count[name] > 1 else "")


def differing(one: pa.ChunkedArray, other: pa.ChunkedArray) -> Bools:
    """The rows in which two columns differ, as a mask."""
    if one.equals(other):
        return np.zeros(len(one), bool)
    if one.type != other.type or pa.types.is_nested(one.type):
        return np.array([a != b for a, b in zip(one.to_pylist(), other.to_pylist(), strict=True)])
    null, new_null = (np.asarray(column.is_null()) for column in (one, other))
    if pa.types.is_floating(one.type):
        was, now = one.to_numpy(), other.to_numpy()
        same = np.isclose(was, now, rtol=RELATIVE, atol=ABSOLUTE, equal_nan=True)
    else:
        same = np.asarray(pc.equal(one, other).fill_null(True))
    mask: Bools = ~same | (null != new_null)
    return mask


def _same(one: Any, other: Any) -> bool:
    floats = isinstance(one, float) or isinstance(other, float)
    if floats and all(isinstance(x, int | float) and not isinstance(x, bool) for x in (one, other)):
        return bool(np.isclose(one, other, rtol=RELATIVE, atol=ABSOLUTE))
    return type(one) is type(other) and bool(one == other)


def _slices(file: pq.ParquetFile) -> Iterator[pa.Table]:
    """The rows of a file, ROWS at a time, whatever its row groups are."""
    rows = file.schema_arrow.empty_table()
    for batch in file.iter_batches(ROWS):
        rows = pa.concat_tables([rows, pa.Table.from_batches([batch])])
        while rows.num_rows >= ROWS:
            yield rows.slice(0, ROWS)
            rows = rows.slice(ROWS)
    if rows.num_rows:
        yield rows


def _keys(rows: pa.Table, row: int) -> str:
    """Keys of a row, for a sentence: ' (repeat 0, step 4)'."""
    keys = [(name, rows[name][row].as_py()) for name in KEYS if name in rows.column_names]
    words = ", ".join(f"{name} {value}" for name, value in keys if value is not None)
    return f" ({words})" if words else ""

"""Writes and reads the files of tables."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from kvscope.base import limits
from kvscope.base.errors import BadInput
from kvscope.base.files import atomic_path
from kvscope.base.reading import open_file, refusing
from kvscope.tables.column import RUNS, SCHEMA_VERSION, Column, Table

if TYPE_CHECKING:  # the workflow, which reads no table, does without
    import pandas as pd

EARLIER = ("2", "3", "4")
_PARTS_AT_ONCE = 16  # of a row group
READABLE = (*EARLIER, str(SCHEMA_VERSION))
"""Versions of files that can be read; `kvscope.tables.earlier` has what stood elsewhere in them."""

_ADDED = {
    "workload": (
        "conversation",
        "turn",
        "after",
        "think_s",
        "output_token_ids",
        "arrival_pass",
        "abort_pass",
    ),
    "requests": ("conversation", "turn", "chosen_sha256"),
    "steps": ("load_wait_s",),
    "batch": ("saved_tokens", "hit_tokens", "own_hit_tokens", "loaded_tokens"),
    "preemptions": (
        "shared_blocks",
        "scheduled_tokens",
        "group_blocks",
        "kv_bytes",
        "hit_tokens",
        "own_hit_tokens",
        "predicted_s",
        "cost_s",
    ),
    "transfers": (
        "job",
        "ordered_s",
        "first_block",
        "loaded_blocks",
        "awaited_step",
        "arrived_step",
    ),
}
"""Columns that files of earlier versions may lack, as they were added since.

They may lack those as well that are null in all rows of some runs.
"""
_OF_RECORDINGS = {"workload": ("block_ids", "text_ids"), "batch": ("group_hit_tokens",)}
"""Columns of recordings that files of any version may lack."""


def to_arrow(table: Table, frame: pd.DataFrame) -> pa.Table:
    """Convert a DataFrame to an Arrow table of this schema; ValueError for unknown columns."""
    extra = set(frame.columns) - set(table.names)
    if extra:
        raise ValueError(f"table {table.name} has no column {sorted(extra)}")
    frame = _with_nulls(table, frame)
    for column in table.columns:
        if pa.types.is_list(column.type):  # pandas' NaN is no list
            values = frame[column.name].astype(object)
            frame = frame.assign(**{column.name: values.where(values.notna(), None)})
    return pa.Table.from_pandas(frame, schema=table.schema, preserve_index=False)


def write_parts(table: Table, parts: Iterable[pa.RecordBatch], path: Path) -> None:
    """Write rows that come part by part, with the table's schema, as Parquet, atomically."""
    with (
        atomic_path(path) as temporary,
        pq.ParquetWriter(temporary, table.schema, compression="zstd") as writer,
    ):
        left = iter(parts)
        while some := [*islice(left, _PARTS_AT_ONCE)]:
            writer.write_table(pa.Table.from_batches(some, table.schema))


def write(table: Table, frame: pd.DataFrame | pa.Table, path: Path) -> None:
    """Write a DataFrame or Arrow table as Parquet with the table's schema, atomically."""
    arrow = frame if isinstance(frame, pa.Table) else to_arrow(table, frame)
    with atomic_path(path) as temporary:
        pq.write_table(arrow.cast(table.schema), temporary, compression="zstd")


def read(table: Table, path: Path, columns: list[str] | None = None) -> pd.DataFrame:
    """Read a Parquet file that must have the table's schema, or some columns of it.

    BadInput names the file if it is missing, damaged or of another schema.
    """
    open_file(path).close()
    with reading(path), pq.ParquetFile(path) as file:
        if complaint := _complaint(table, path, file):
            raise BadInput(complaint)
        rows = file.read(columns)
        rows.validate(full=True)  # texts are UTF-8, and so on
        frame: pd.DataFrame = rows.to_pandas(ignore_metadata=True)
    return frame if columns else _with_nulls(table, frame)[table.names]


def _with_nulls(table: Table, frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with null in the columns that it lacks, of those that a run may lack."""
    lacking = [c.name for c in table.columns if c.can_lack and c.name not in frame]
    return frame.assign(**dict.fromkeys(lacking)) if lacking else frame


def check_file(table: Table, path: Path) -> str | None:
    """The problem with the schema of a table's file in one sentence; None if it is correct."""
    try:
        open_file(path).close()
        with reading(path), pq.ParquetFile(path) as file:
            return _complaint(table, path, file)
    except BadInput as error:
        return str(error)


def _complaint(table: Table, path: Path, file: pq.ParquetFile) -> str | None:
    schema, rows, version = file.schema_arrow, file.metadata.num_rows, _version(file)
    if version not in READABLE:
        versions = " or ".join(READABLE)
        return f"{path}: schema version {version or 'absent'}, expected {versions}"
    size = path.stat().st_size
    if rows > limits.FREE_ROWS + limits.MOST_ROWS_PER_BYTE * size:
        return f"{path}: {rows:,} rows in {size:,} bytes, more than a table has"
    for column in table.columns:
        times = schema.names.count(column.name)
        if not times and _may_be_missing(table, column, version):
            continue
        if times != 1:
            many = f"is there {times} times" if times else "is missing"
            return f"{path}: column '{column.name}' {many}"
        if schema.field(column.name).type != column.type:
            return (
                f"{path}: column '{column.name}' has type {schema.field(column.name).type}, "
                f"expected {column.type}"
            )
    return None


def _may_be_missing(table: Table, column: Column, version: str) -> bool:
    added = column.null == RUNS or column.name in _ADDED.get(table.name, ())
    return (version in EARLIER and added) or column.name in _OF_RECORDINGS.get(table.name, ())


def reading(path: Path) -> AbstractContextManager[None]:
    """Convert the errors that Arrow raises for a damaged file to BadInput."""
    return refusing(path, "Parquet")


def _version(file: pq.ParquetFile) -> str:
    version: bytes = (file.schema_arrow.metadata or {}).get(b"kvscope.schema_version", b"")
    return version.decode()[:20]

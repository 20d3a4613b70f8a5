"""Writing a table while its rows stream in, with a progress bar on a terminal."""

import sys
from base64 import b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import Progress

from kvscope.base import limits
from kvscope.base.files import atomic_path
from kvscope.collect.prefetch import prefetch
from kvscope.tables import Table


def write_batches(
    table: Table,
    out_dir: Path,
    batches: Iterable[Mapping[str, Any]],
    total: int = 0,
    delta_encoded: Collection[str] = (),
    nullable: Collection[str] | None = None,
) -> int:
    """Write batches of columns as a table's file, atomically; give the row count.

    A batch maps every column of the table to its values, which are cast to the column's type. It
    becomes one row group, or several if its texts are long. `total` is the expected number of rows,
    for the progress bar. Columns in `delta_encoded` are stored as differences, which halves the
    size and the time of sorted instants; the other numbers are then stored as they are. Columns
    that are not in `nullable`, if it is given, have no null, so none is looked for or stored. A
    thread makes a batch while the one before it is written.

    Texts are written as codes into a dictionary, without being written out; the file declares
    them as texts, by the schema that it names as its own.
    """
    written = 0
    fields = [
        _coded(field).with_nullable(nullable is None or field.name in nullable)
        for field in table.schema
    ]
    schema = pa.schema(fields, table.schema.metadata)
    texts = [field.name for field in schema if pa.types.is_dictionary(field.type)]
    numbers = [name for name in table.names if name not in texts]
    layout: dict[str, Any] = {"compression": "zstd", "write_statistics": numbers}
    if delta_encoded:
        differences = [name for name in numbers if name in delta_encoded]
        layout["column_encoding"] = dict.fromkeys(differences, "DELTA_BINARY_PACKED")
        layout["use_dictionary"] = texts
    with (
        atomic_path(out_dir / table.file) as temporary,
        pq.ParquetWriter(temporary, schema, store_schema=False, **layout) as writer,
    ):
        declared = b64encode(table.schema.serialize())
        writer.add_key_value_metadata({"ARROW:schema": declared})
        for batch in _with_progress(batches, table.name, total):
            for part in _split(batch):
                columns = [_cast(part[field.name], field.type) for field in schema]
                rows = pa.table(columns, schema=schema)
                writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
                written += rows.num_rows
    return written


def _coded(field: pa.Field) -> pa.Field:
    """The field, of codes if it is of texts."""
    coded = pa.dictionary(pa.int32(), field.type)
    return field.with_type(coded) if pa.types.is_string(field.type) else field


def _cast(values: pa.Array | pa.ChunkedArray, to: pa.DataType) -> pa.Array | pa.ChunkedArray:
    if values.type == to or not pa.types.is_dictionary(to):
        return values.cast(to)
    if isinstance(values, pa.DictionaryArray):
        return _recoded(values).cast(to)
    return values.cast(to.value_type).dictionary_encode()


def _recoded(texts: pa.DictionaryArray) -> pa.DictionaryArray:
    """The texts in a dictionary of those that occur, each once; a few of many in an export."""
    used = texts.indices.dictionary_encode()
    distinct = texts.dictionary.take(used.dictionary).dictionary_encode()
    codes = distinct.indices.take(used.indices)
    return pa.DictionaryArray.from_arrays(codes, distinct.dictionary)


def _split(batch: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Parts of a batch, each with texts that fit in memory when its codes are expanded."""
    total = sum(map(_text_bytes, batch.values()))
    rows = len(next(iter(batch.values())))
    step = max(rows // (1 + total // limits.MOST_TEXT_BYTES), 1)
    for first in range(0, rows, step):
        yield {name: column.slice(first, step) for name, column in batch.items()}


def _text_bytes(column: pa.Array | pa.ChunkedArray) -> int:
    """Bytes of a column's texts written out, if codes stand for them; else 0."""
    if not pa.types.is_dictionary(column.type):
        return 0
    pieces = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    sizes = (pc.binary_length(piece.dictionary).take(piece.indices) for piece in pieces)
    return sum(pc.sum(size).as_py() or 0 for size in sizes)


def _with_progress(
    batches: Iterable[Mapping[str, Any]], label: str, total: int
) -> Iterator[Mapping[str, Any]]:
    """Show on stderr, if it is a terminal, how many of the rows have passed."""
    console = Console(stderr=True)
    with Progress(console=console, disable=not sys.stderr.isatty(), transient=True) as progress:
        task = progress.add_task(label, total=total)
        for batch in prefetch(batches):
            yield batch
            progress.advance(task, len(next(iter(batch.values()))))

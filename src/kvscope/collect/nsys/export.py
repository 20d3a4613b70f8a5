"""An Nsight Systems SQLite export, read whatever version wrote it.

Row order is never promised, so every query that streams rows states its order. SQLite keeps any
value in any column, so that what is read is held against what is due there.
"""

import sqlite3
import struct
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import quote

import adbc_driver_sqlite
import adbc_driver_sqlite.dbapi
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvscope.base import limits
from kvscope.base.errors import BadInput
from kvscope.base.reading import open_file, refusing, short_repr
from kvscope.collect.nsys import schema
from kvscope.collect.nsys.renames import known_columns
from kvscope.collect.nsys.strings import Strings, as_utf8, cut, is_cut
from kvscope.collect.prefetch import prefetch

BATCH_ROWS = 1 << 17
"""Rows of one streamed batch, and so of one Parquet row group at most."""

_MAGIC = b"SQLite format 3\x00"
_BESIDE = ("-journal", "-wal", "-shm")  # files that SQLite opens with a database
_HINT = "make one with `nsys export --type sqlite`"
_KIND = "an Nsight Systems export"


@dataclass(frozen=True)
class Query:
    """Columns to stream from a table: `integers`, null where a version lacks them, and `computed`
    columns by name, each an SQL expression and its type.

    `others` are columns that only `computed` and `where` speak of.
    """

    table: str
    integers: tuple[str, ...]
    others: tuple[str, ...] = ()
    computed: Mapping[str, tuple[str, pa.DataType]] = field(default_factory=dict)
    where: str = "1"
    order: str = 'start, "end" DESC, row'


class NsysExport:
    """An nsys export, open for reading; a context manager.

    Raises BadInput, in one sentence that names the file, if it is missing, not SQLite, not an
    export, truncated, or found damaged while it is read.
    """

    def __init__(self, path: Path) -> None:
        _check_header(path)
        self.path = path
        self.texts_cut = 0
        """Texts of which only the first limits.LONGEST_NAME characters are read, so far."""
        self._text_bytes = 0
        self.count = cache(self._count)
        """Rows of a table; 0 if the export does not have it."""
        self.columns = cache(self._columns)
        """Columns of a table by their names of today, with the export's; none without the table."""
        self._uri = f"file:{quote(str(path.resolve()))}?mode=ro"
        self._small = sqlite3.connect(self._uri, uri=True, check_same_thread=False)
        self._small.text_factory = lambda text: text.decode("utf-8", "replace")
        self._asking = Lock()  # SQLite dies if a thread asks while another one closes
        try:
            # A view or a virtual table is no data: it may go on for ever.
            real = "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0"
            self.tables = {name for (name,) in self.rows(real)}
            if not self.tables & {*schema.METADATA, schema.STRINGS}:
                raise BadInput(f"{path}: not an Nsight Systems export; {_HINT}")
            self.rows("PRAGMA trusted_schema = OFF")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        with self._asking:
            self._small.close()

    def __enter__(self) -> "NsysExport":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- small questions, answered with Python objects

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """All rows of a query whose result is small."""
        with self._asking:
            return list(self.each(sql))

    def each(self, sql: str) -> Iterator[tuple[Any, ...]]:
        """The rows of a query, one after the other."""
        with refusing(self.path, _KIND):
            yield from self._small.execute(sql)

    def _columns(self, table: str) -> Mapping[str, str]:
        return known_columns(table, {row[1] for row in self.rows(f'PRAGMA table_info("{table}")')})

    def source(self, table: str, columns: Collection[str], more: str = "") -> str:
        """SQL for a table of these columns, NULL for those that this version lacks, and of `more`.

        `more` is SQL for a column besides.
        """
        names = self.columns(table)
        selected = [f'"{names[c]}" AS "{c}"' if c in names else f'NULL AS "{c}"' for c in columns]
        return f'(SELECT {", ".join(filter(None, (more, *selected)))} FROM "{table}" NOT INDEXED)'

    def _count(self, table: str) -> int:
        if table not in self.tables:
            return 0
        return int(self.rows(f'SELECT COUNT(*) FROM "{table}" NOT INDEXED')[0][0])

    @cached_property
    def metadata(self) -> dict[str, str]:
        """Metadata of the exporter: EXPORT_PRODUCT_VERSION and so on."""
        entries: dict[str, str] = {}
        for table in schema.METADATA:
            if table in self.tables:
                source = self.source(table, ("name", "value"))
                entries.update(self.rows(f"SELECT {cut('name')}, {cut('value')} FROM {source}"))
        return entries

    @property
    def session_start_utc_ns(self) -> int | None:
        """UTC time of the instant 0 of the capture; null if the export does not have it."""
        return self._time(*schema.SESSION_START)

    @property
    def origin_ns(self) -> int:
        """Offset of event times from the capture's clock: 0, or UTC if exported so."""
        normalised = self.metadata.get("EXPORT_PARAM_TIME_NORMALIZE") == "true"
        return (self.session_start_utc_ns or 0) if normalised else 0

    @property
    def capture_end_ns(self) -> int | None:
        """End of the capture on the clock of the events; null if the export does not have it."""
        duration = self._time(*schema.CAPTURE_LENGTH)
        return duration + self.origin_ns if duration is not None else None

    def _time(self, table: str, column: str) -> int | None:
        """The time that a table's first row has."""
        if column not in self.columns(table):
            return None
        rows = self.rows(f"SELECT {column} FROM {self.source(table, (column,))} LIMIT 1")
        time = rows[0][0] if rows else None
        least, most = limits.TIMES_NS
        if time is not None and not (isinstance(time, int) and least <= time <= most):
            raise self._bad_value(table, column, short_repr(time), limits.TIMES_NS)
        return time

    # --- large tables, streamed as Arrow

    def stream(self, query: Query) -> Iterator[pa.RecordBatch]:
        """The rows of a query as record batches of at most BATCH_ROWS rows.

        A thread reads them, beginning at once. BadInput names table and column of a value that is
        no whole number where one is due, or none that kvscope's tables hold. The driver takes a
        column's type from its first batch (all null reads as integer), so that a computed one must
        not begin with nulls if it is no integer.
        """
        return prefetch(self._batches(query, self._sql(query)))

    def _batches(self, query: Query, sql: str) -> Iterator[pa.RecordBatch]:
        with (
            closing(adbc_driver_sqlite.dbapi.connect(self._uri)) as connection,
            closing(connection.cursor()) as cursor,
        ):
            batch_rows = adbc_driver_sqlite.StatementOptions.BATCH_ROWS.value
            cursor.adbc_statement.set_options(**{batch_rows: str(BATCH_ROWS)})
            with refusing(self.path, _KIND):
                cursor.execute(sql)
                for batch in cursor.fetch_record_batch():
                    yield self._check_batch(query, batch)

    def _sql(self, query: Query) -> str:
        """BadInput if the table has no start or end, without which no row means anything."""
        missing = {"start", "end"} - {*self.columns(query.table)}
        if "start" in query.integers and missing:
            raise BadInput(f"{self.path}: table {query.table} has no column '{min(missing)}'")
        columns = (*query.integers, *query.others)
        selected = {name: f'"{name}"' for name in query.integers}
        selected |= {name: sql for name, (sql, _) in query.computed.items()}
        return f"""
            SELECT {", ".join(f'{sql} AS "{name}"' for name, sql in selected.items())}
            FROM {self.source(query.table, columns, "rowid AS row")}
            WHERE {query.where} ORDER BY {query.order}"""

    def _check_batch(self, query: Query, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch, if every column has the expected type and range."""
        columns = []
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            _, type_ = query.computed.get(name, (None, pa.int64()))
            if column.type != type_ and batch.num_rows:
                raise self._bad_value(query.table, name, f"{column.type}s", None)
            within = schema.BOUNDS.get(name)
            if within is not None and len(column):
                ends = pc.min_max(column)
                for end in (ends["min"].as_py(), ends["max"].as_py()):
                    if end is not None and not within[0] <= end <= within[1]:
                        raise self._bad_value(query.table, name, str(end), within)
            if name in ("start", "end") and column.null_count:
                raise self._bad_value(query.table, name, "no value", within)
            columns.append(as_utf8(column) if type_ == pa.string() and batch.num_rows else column)
        return pa.record_batch(columns, names=batch.schema.names)

    def _bad_value(
        self, table: str, column: str, found: str, within: tuple[int, int] | None
    ) -> BadInput:
        range_ = f" from {within[0]} to {within[1]}" if within else ""
        holds = f"{self.path}: table {table}: column '{column}' holds {found}"
        return BadInput(f"{holds}; expected a whole number{range_}")

    @cached_property
    def strings(self) -> Strings:
        """The export's string table."""
        if schema.STRINGS not in self.tables:
            return Strings(np.empty(0, np.int64), pa.array([], pa.string()))
        query = Query(
            schema.STRINGS,
            integers=("id",),
            others=("value",),
            computed={"text": (cut("value"), pa.string()), "cut": (self._cut_name, pa.int64())},
            where="id IS NOT NULL",
            order="id",
        )
        ids, values = [np.empty(0, np.int64)], [pa.array([], pa.string())]
        for batch in self.stream(query):
            self.count_texts(batch["text"], batch["cut"])
            ids.append(batch["id"].to_numpy())
            values.append(batch["text"])
        return Strings(np.concatenate(ids), pa.concat_arrays(values))

    @property
    def _cut_name(self) -> str:
        """SQL: whether a string is a name longer than LONGEST_NAME, and no process's output."""
        ids = [
            f'SELECT "{column}" FROM {self.source(table, (column,))}'
            for table, columns in schema.NAMES.items()
            for column in columns
            if column in self.columns(table)
        ]
        return f"{is_cut('value')} AND id IN ({' UNION ALL '.join(ids) or 'NULL'})"

    def count_texts(self, texts: pa.Array, cut: pa.Array) -> None:
        """Take note of texts that are kept, and of how many were cut; BadInput if too many are."""
        self.texts_cut += pc.sum(cut).as_py() or 0
        self._text_bytes += texts.nbytes
        if self._text_bytes > limits.MOST_NAMES_BYTES:
            most = f"{limits.MOST_NAMES_BYTES:,} bytes"
            raise BadInput(f"{self.path}: its names take more than {most} (StringIds, NVTX_EVENTS)")


def _check_header(path: Path) -> None:
    """Refuse what is visibly not a whole SQLite file.

    SQLite itself reads a truncated file without complaint until it needs a page that is gone.
    """
    with open_file(path) as file:
        header, size = file.read(100), path.stat().st_size
    for suffix in _BESIDE:
        beside = path.with_name(path.name + suffix)
        if beside.exists() and not beside.is_file():
            raise BadInput(f"{beside}: not a regular file, and SQLite would read it; remove it")
    if not header.startswith(_MAGIC) or len(header) < 100:
        raise BadInput(f"{path}: not an SQLite file; {_HINT}")
    page_size, changes, pages, valid_for = (
        struct.unpack(">H", header[16:18])[0],
        *(struct.unpack(">I", header[offset : offset + 4])[0] for offset in (24, 28, 92)),
    )
    expected = pages * (65536 if page_size == 1 else page_size)
    if changes == valid_for and size < expected:
        raise BadInput(f"{path}: truncated, {size} of {expected} bytes are there")

"""An Nsight Systems SQLite export, read by column name whatever version wrote it.

Exports of schema 2.9 (2022) to 3.25 (2026) differ in the tables they have (one without rows is
left out), in the columns of a table (new ones appear in the middle) and in the name of the
metadata table. Row order is never promised, so every query that streams rows states its order.
"""

import re
import sqlite3
import struct
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import adbc_driver_manager
import adbc_driver_sqlite
import adbc_driver_sqlite.dbapi
import numpy as np
import pyarrow as pa

from kvscope.collect.arrays import Int64s
from kvscope.errors import BadInput

BATCH_ROWS = 1 << 17
"""Rows of one streamed batch, and so of one Parquet row group."""

_METADATA_TABLES = ("META_DATA_EXPORT", "EXPORT_META_DATA")  # from 3.4, up to 3.1
_MAGIC = b"SQLite format 3\x00"
_HINT = "make one with `nsys export --type sqlite`"


class NsysExport:
    """One export, open for reading; use it as a context manager.

    Raises BadInput, in one sentence that names the file, if it is missing, not SQLite, not an
    export, truncated, or found damaged while it is read.
    """

    def __init__(self, path: Path) -> None:
        _check_header(path)
        self.path = path
        self._uri = f"file:{quote(str(path.resolve()))}?mode=ro"
        self._small = sqlite3.connect(self._uri, uri=True)
        self._large = adbc_driver_sqlite.dbapi.connect(self._uri)
        try:
            self.tables = {name for (name,) in self.rows("SELECT name FROM sqlite_master")}
            if not self.tables & {*_METADATA_TABLES, "StringIds"}:
                raise BadInput(f"{path}: not an Nsight Systems export; {_HINT}")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._small.close()
        self._large.close()

    def __enter__(self) -> "NsysExport":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- small questions, answered with Python objects

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """All rows of a query whose result is small."""
        try:
            return self._small.execute(sql).fetchall()
        except sqlite3.DatabaseError as error:
            raise self._damaged(error) from None

    def columns(self, table: str) -> set[str]:
        """Names of a table's columns; none if the export does not have the table."""
        return {row[1] for row in self.rows(f'PRAGMA table_info("{table}")')}

    def count(self, table: str) -> int:
        """Rows of a table; 0 if the export does not have it."""
        if table not in self.tables:
            return 0
        return int(self.rows(f'SELECT COUNT(*) FROM "{table}"')[0][0])

    @cached_property
    def metadata(self) -> dict[str, str]:
        """What the exporter says of itself: EXPORT_PRODUCT_VERSION and so on."""
        found: dict[str, str] = {}
        for table in _METADATA_TABLES:
            if table in self.tables:
                found.update(self.rows(f"SELECT name, value FROM {table}"))
        return found

    @property
    def session_start_utc_ns(self) -> int | None:
        """UTC time of the instant 0 of the capture; null if the export does not have it."""
        start = self._first("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")
        return int(start) if start is not None else None

    @property
    def origin_ns(self) -> int:
        """What event times add to the capture's clock: 0, or UTC if exported so."""
        normalised = self.metadata.get("EXPORT_PARAM_TIME_NORMALIZE") == "true"
        return (self.session_start_utc_ns or 0) if normalised else 0

    @property
    def capture_end_ns(self) -> int | None:
        """End of the capture on the clock of the events; null if the export does not have it."""
        duration = self._first("ANALYSIS_DETAILS", "duration")
        return int(duration) + self.origin_ns if duration is not None else None

    def _first(self, table: str, column: str) -> Any:
        if column not in self.columns(table):
            return None
        rows = self.rows(f"SELECT {column} FROM {table} LIMIT 1")
        return rows[0][0] if rows else None

    # --- large tables, streamed as Arrow

    def select(self, table: str, columns: Iterable[str]) -> str:
        """The select list of `columns`, with NULL for one that this version does not have.

        Raises BadInput if the table has no start or end, without which no row means anything.
        """
        present = self.columns(table)
        missing = {"start", "end"} - present
        if missing:
            raise BadInput(f"{self.path}: table {table} has no column '{min(missing)}'")
        return ", ".join(f'"{c}"' if c in present else f'NULL AS "{c}"' for c in columns)

    def stream(self, sql: str) -> Iterator[pa.RecordBatch]:
        """The rows of a query as record batches of at most BATCH_ROWS rows.

        The driver takes a column's type from its first batch (all null reads as integer), so
        that a query must not give text or floats in a column that may begin with nulls.
        """
        with closing(self._large.cursor()) as cursor:
            batch_rows = adbc_driver_sqlite.StatementOptions.BATCH_ROWS.value
            cursor.adbc_statement.set_options(**{batch_rows: str(BATCH_ROWS)})
            # Only reading is guarded: what the consumer raises (a full disk) is its own.
            self._guarded(lambda: cursor.execute(sql))
            reader = self._guarded(cursor.fetch_record_batch)
            while (batch := self._guarded(lambda: next(reader, None))) is not None:
                yield batch

    def _guarded(self, read: Any) -> Any:
        try:
            return read()
        except (adbc_driver_manager.Error, pa.ArrowException, OSError) as error:
            raise self._damaged(error) from None

    @cached_property
    def strings(self) -> "Strings":
        """The export's string table."""
        if "StringIds" not in self.tables:
            return Strings(np.empty(0, np.int64), pa.array([], pa.string()))
        batches = list(self.stream("SELECT id, value FROM StringIds ORDER BY id"))
        ids = [batch.column(0).to_numpy() for batch in batches]
        values = [batch.column(1).cast(pa.string()) for batch in batches]
        return Strings(
            np.concatenate([np.empty(0, np.int64), *ids]),
            pa.concat_arrays([pa.array([], pa.string()), *values]),
        )

    def _damaged(self, error: Exception) -> BadInput:
        reason = re.sub(r"\s+", " ", str(error)).strip().rstrip(".")
        return BadInput(f"{self.path}: damaged, or cannot be read to its end ({reason})")


class Strings:
    """The strings of an export: ascending ids and their values."""

    def __init__(self, ids: Int64s, values: pa.Array) -> None:
        self._ids = ids
        self.values = values

    def lookup(self, ids: pa.Array) -> pa.DictionaryArray:
        """The string of each id; null for a null or unknown id."""
        wanted = ids.fill_null(-1).to_numpy(zero_copy_only=False)
        if not len(self._ids):
            return pa.nulls(len(wanted), pa.dictionary(pa.int64(), pa.string()))
        places = np.minimum(np.searchsorted(self._ids, wanted), len(self._ids) - 1)
        unknown = self._ids[places] != wanted
        return pa.DictionaryArray.from_arrays(pa.array(places, mask=unknown), self.values)


def _check_header(path: Path) -> None:
    """Refuse what is visibly not a whole SQLite file.

    SQLite itself reads a truncated file without complaint until it needs a page that is gone.
    """
    try:
        with path.open("rb") as file:
            header = file.read(100)
        size = path.stat().st_size
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from None
    if not header.startswith(_MAGIC) or len(header) < 100:
        raise BadInput(f"{path}: not an SQLite file; {_HINT}")
    page_size, changes, pages, valid_for = (
        struct.unpack(">H", header[16:18])[0],
        *(struct.unpack(">I", header[at : at + 4])[0] for at in (24, 28, 92)),
    )
    expected = pages * (65536 if page_size == 1 else page_size)
    if changes == valid_for and size < expected:
        raise BadInput(f"{path}: truncated, {size} of {expected} bytes are there")

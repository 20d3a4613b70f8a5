"""Nsight Systems exports that are damaged or hostile: sound tables, or one sentence."""

import json
import sqlite3
import tempfile
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope import limits, tables
from kvscope.collect.collector import collect_nsys
from kvscope.errors import BadInput

from .mutations import damaged, is_a_sentence
from .nsys_fixture import NsysFile, global_id

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

PROCESS, THREAD = global_id(7), global_id(7, 70)
TABLES = (tables.NVTX_RANGES, tables.CUDA_API, tables.GPU_KERNELS, tables.GPU_MEMCPYS)


def small_export(path: Path) -> Path:
    """An export with a few rows of everything that is read, in columns that take any value."""
    file = NsysFile(path)
    own = file.kvscope(THREAD)
    own("repeat", 0, 900, 0)
    own("forward pass", 10, 800, 3)
    file.domain("library", 2, THREAD)
    file.range("a range", 20, 700, THREAD, domainId=2, doubleValue=0.5)
    file.range("another", 30, None, THREAD, uint64Value=5)
    file.range("start/end", 5, 950, THREAD, kind=60, registered=True)
    for number in range(12):
        file.call(100 + 10 * number, 105 + 10 * number, THREAD, number)
        file.kernel(200 + 10 * number, 205 + 10 * number, PROCESS, number)
        file.copy(400 + 10 * number, 405 + 10 * number, PROCESS, number)
    file.insert("DIAGNOSTIC_EVENT", severity=2, text="some events were lost", timestamp=1)
    file.sql.execute("PRAGMA writable_schema = ON")
    file.sql.execute("UPDATE sqlite_master SET sql = replace(sql, ' NOT NULL', '')")
    return file.close()


def of(make: Callable[[Path], Any]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.sqlite"
        make(path)
        return path.read_bytes()


EXPORT = of(small_export)
PAGE_BYTES = 4096


def sound_or_refused(content: bytes) -> dict[str, Any] | None:
    """Collect an export: the account of it, or None where it was refused."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.sqlite"
        path.write_bytes(content)
        try:
            account = collect_nsys(path, path.parent / "out")
        except BadInput as refusal:
            is_a_sentence(refusal, path)
            return None
        for table in TABLES:
            rows = pq.read_table(path.parent / "out" / f"{table.name}.parquet")
            rows.validate(full=True)
            assert rows.schema.equals(table.schema)
            assert len(rows) == account["rows"][table.name]
            assert rows["start_ns"].null_count == rows["end_ns"].null_count == 0
        assert all(len(warning) < 1000 for warning in account["warnings"])
        json.dumps(account, allow_nan=False)
        return account


def test_the_example_itself_is_sound() -> None:
    account = sound_or_refused(EXPORT)
    assert account is not None
    assert account["rows"] == {
        "nvtx_ranges": 5,
        "cuda_api": 12,
        "gpu_kernels": 12,
        "gpu_memcpys": 12,
    }


@given(damaged(EXPORT))
@settings(deadline=None)
def test_a_damaged_file(content: bytes) -> None:
    sound_or_refused(content)


PAGES = st.integers(1, len(EXPORT) // PAGE_BYTES - 1)


@given(page=PAGES, other=PAGES, zeros=st.booleans(), seed=st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_a_page_of_anything(page: int, other: int, zeros: bool, seed: int) -> None:
    """What is no page is noticed; a page of another table may pass for one."""
    noise = bytes(PAGE_BYTES) if zeros else np.random.default_rng(seed).bytes(PAGE_BYTES)
    account = sound_or_refused(with_page(EXPORT, page, noise))
    assert account is None or any("damaged" in warning for warning in account["warnings"])
    sound_or_refused(with_page(EXPORT, page, EXPORT[other * PAGE_BYTES :][:PAGE_BYTES]))


def with_page(content: bytes, page: int, filling: bytes) -> bytes:
    return content[: page * PAGE_BYTES] + filling + content[(page + 1) * PAGE_BYTES :]


def cells() -> list[tuple[str, str, int]]:
    """Table, column and row of every cell."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.sqlite"
        path.write_bytes(EXPORT)
        sql = sqlite3.connect(path)
        names = [name for (name,) in sql.execute("SELECT name FROM sqlite_master")]
        found = [
            (table, row[1], rowid)
            for table in names
            for row in sql.execute(f"PRAGMA table_info({table})")
            for (rowid,) in sql.execute(f"SELECT rowid FROM {table} LIMIT 6")
        ]
        sql.close()
        return found


HUGE = [2**31 - 1, 2**31, 2**32, 2**61, 2**62, 2**63 - 1]
CELL_VALUES = st.one_of(
    st.sampled_from([None, 0.5, float("inf"), 1e300, -0.0, *HUGE, *(-number for number in HUGE)]),
    st.sampled_from(["", "text", "12", b"", b"\xff\xfe\x00", "x" * 100_000, "\0", "a\nb"]),
    st.integers(-2, 100),
)


def altered_export(changes: list[tuple[tuple[str, str, int], Any]]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.sqlite"
        path.write_bytes(EXPORT)
        sql = sqlite3.connect(path)
        for (table, column, row), value in changes:
            sql.execute(f'UPDATE {table} SET "{column}" = ? WHERE rowid = ?', (value, row))
        sql.commit()
        sql.close()
        return path.read_bytes()


@given(st.lists(st.tuples(st.sampled_from(cells()), CELL_VALUES), min_size=1, max_size=3))
def test_other_values(changes: list[tuple[tuple[str, str, int], Any]]) -> None:
    sound_or_refused(altered_export(changes))


def refusal(path: Path) -> str:
    with pytest.raises(BadInput) as caught:
        collect_nsys(path, path.parent / "out")
    is_a_sentence(caught.value, path)
    assert not (path.parent / "out" / "collect.json").exists()
    return str(caught.value)


NUMBERS = [
    ("NVTX_EVENTS", "start"),
    ("NVTX_EVENTS", "end"),
    ("NVTX_EVENTS", "eventType"),
    ("NVTX_EVENTS", "globalTid"),
    ("NVTX_EVENTS", "domainId"),
    ("NVTX_EVENTS", "textId"),
    ("NVTX_EVENTS", "int64Value"),
    ("NVTX_EVENTS", "uint64Value"),
    ("NVTX_EVENTS", "doubleValue"),
    ("CUPTI_ACTIVITY_KIND_RUNTIME", "start"),
    ("CUPTI_ACTIVITY_KIND_RUNTIME", "globalTid"),
    ("CUPTI_ACTIVITY_KIND_RUNTIME", "nameId"),
    ("CUPTI_ACTIVITY_KIND_KERNEL", "end"),
    ("CUPTI_ACTIVITY_KIND_KERNEL", "deviceId"),
    ("CUPTI_ACTIVITY_KIND_KERNEL", "gridX"),
    ("CUPTI_ACTIVITY_KIND_KERNEL", "correlationId"),
    ("CUPTI_ACTIVITY_KIND_MEMCPY", "bytes"),
    ("CUPTI_ACTIVITY_KIND_MEMCPY", "copyKind"),
    ("StringIds", "id"),
    ("ANALYSIS_DETAILS", "duration"),
    ("TARGET_INFO_SESSION_START_TIME", "utcEpochNs"),
]


@pytest.mark.parametrize("value", ["text", b"\x00", 0.5], ids=["text", "blob", "fraction"])
@pytest.mark.parametrize(("table", "column"), NUMBERS)
@pytest.mark.parametrize("row", ["first", "last"])
def test_what_is_no_number_is_refused_by_table_and_column(
    tmp_path: Path, table: str, column: str, value: Any, row: str
) -> None:
    path = tmp_path / "trace.sqlite"
    path.write_bytes(EXPORT)
    sql = sqlite3.connect(path)
    kinds = "WHERE eventType IN (59, 60)" if table == "NVTX_EVENTS" else ""
    order = {"first": "MIN", "last": "MAX"}[row]
    (rowid,) = sql.execute(f"SELECT {order}(rowid) FROM {table} {kinds}").fetchone()
    sql.execute(f'UPDATE {table} SET "{column}" = ? WHERE rowid = ?', (value, rowid))
    sql.commit()
    sql.close()
    if column == "doubleValue" and value == 0.5:
        return
    message = refusal(path)
    assert f"table {table}" in message
    assert f"'{column}'" in message


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("CUPTI_ACTIVITY_KIND_KERNEL", "deviceId", 2**31),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "gridY", 2**40),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "start", 2**62),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "start", None),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "end", -(2**63)),
        ("NVTX_EVENTS", "start", None),
        ("NVTX_EVENTS", "end", 2**63 - 1),
        ("ANALYSIS_DETAILS", "duration", 2**62),
        ("TARGET_INFO_SESSION_START_TIME", "utcEpochNs", 2**62),
    ],
)
def test_numbers_that_no_column_holds_are_refused(
    tmp_path: Path, table: str, column: str, value: Any
) -> None:
    path = tmp_path / "trace.sqlite"
    path.write_bytes(altered_export([((table, column, 5 if table == "NVTX_EVENTS" else 1), value)]))
    message = refusal(path)
    assert f"table {table}" in message
    assert f"'{column}'" in message


def test_damage_in_what_is_not_read_is_a_warning(tmp_path: Path) -> None:
    path = small_export(tmp_path / "trace.sqlite")
    sql = sqlite3.connect(path)
    sql.execute("CREATE TABLE SCHED_EVENTS (start INTEGER, cpu INTEGER)")
    sql.executemany("INSERT INTO SCHED_EVENTS VALUES (?, ?)", [(n, n % 8) for n in range(5000)])
    sql.commit()
    (root,) = sql.execute(
        "SELECT rootpage FROM sqlite_master WHERE name = 'SCHED_EVENTS'"
    ).fetchone()
    sql.close()
    path.write_bytes(with_page(path.read_bytes(), root, b"\xab" * PAGE_BYTES))
    (warning,) = [w for w in collect_nsys(path, tmp_path / "out")["warnings"] if "damaged" in w]
    assert "tables that kvscope does not read" in warning


# --- long names, deep stacks, many threads


def test_long_names_are_cut_and_a_warning_says_so(tmp_path: Path) -> None:
    file = NsysFile(tmp_path / "trace.sqlite")
    long = "ä" * 3_000_000
    file.range(long, 0, 10, THREAD)
    file.range(long + "registered", 20, 30, THREAD, registered=True)
    file.range("short", 40, 50, THREAD)
    file.call(1, 2, THREAD, 1)
    file.kernel(3, 4, PROCESS, 1, name=long)
    account = collect_nsys(file.close(), tmp_path / "out")
    ranges = tables.read(tables.NVTX_RANGES, tmp_path / "out" / "nvtx_ranges.parquet")
    assert ranges["name"].str.len().tolist() == [limits.LONGEST_NAME, limits.LONGEST_NAME, 5]
    assert ranges["name"][0] == "ä" * (limits.LONGEST_NAME - 1) + "…"
    kernels = tables.read(tables.GPU_KERNELS, tmp_path / "out" / "gpu_kernels.parquet")
    assert kernels["short_name"].str.len().tolist() == [limits.LONGEST_NAME]
    (warning,) = [w for w in account["warnings"] if "longer" in w]
    assert f"{limits.LONGEST_NAME:,} characters" in warning


def deep(path: Path, depth: int, names: Callable[[int], str] = str) -> Path:
    file = NsysFile(path, capture_end=4 * depth)
    for number in range(depth):
        file.range(names(number), number, 4 * depth - number, THREAD)
    file.call(2 * depth, 2 * depth + 1, THREAD, 1)
    file.kernel(2 * depth, 2 * depth + 1, PROCESS, 1)
    return file.close()


def test_ranges_nested_without_end_are_followed_for_a_while(tmp_path: Path) -> None:
    depth = 20_000
    path = deep(tmp_path / "trace.sqlite", depth)
    tracemalloc.start()
    account = collect_nsys(path, tmp_path / "out")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 28
    ranges = tables.read(tables.NVTX_RANGES, tmp_path / "out" / "nvtx_ranges.parquet")
    most = limits.DEEPEST_STACK
    assert ranges["depth"].tolist() == [*range(most), *[most] * (depth - most)]
    assert ranges["parent_id"][1:].tolist() == [*range(most), *[most - 1] * (depth - most - 1)]
    assert ranges["path"][3] == "0/1/2/3"
    assert ranges["path"].str.len().max() <= limits.LONGEST_PATH
    (warning,) = [w for w in account["warnings"] if "nested" in w]
    assert f"{most:,}" in warning


def test_a_path_that_is_too_long_ends_where_no_name_fits(tmp_path: Path) -> None:
    length = limits.LONGEST_PATH // 4
    path = deep(tmp_path / "trace.sqlite", 10, lambda number: str(number) * length)
    account = collect_nsys(path, tmp_path / "out")
    ranges = tables.read(tables.NVTX_RANGES, tmp_path / "out" / "nvtx_ranges.parquet")
    whole = "/".join(str(number) * length for number in range(3))
    assert ranges["path"].tolist()[:3] == [whole[: (length + 1) * n - 1] for n in (1, 2, 3)]
    assert ranges["path"].tolist()[3:] == [whole + "/…"] * 7
    assert ranges["depth"].tolist() == list(range(10))
    assert any("path" in warning for warning in account["warnings"])


def test_all_paths_together_stay_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MOST_PATH_BYTES", 10_000)
    account = collect_nsys(deep(tmp_path / "trace.sqlite", 500), tmp_path / "out")
    ranges = tables.read(tables.NVTX_RANGES, tmp_path / "out" / "nvtx_ranges.parquet")
    assert sum(map(len, set(ranges["path"]))) < 12_000
    assert ranges["path"][20] == "/".join(map(str, range(21)))
    assert ranges["path"][499].endswith("/…")
    assert any("path" in warning for warning in account["warnings"])


def test_ranges_that_cross_without_end_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As no stacks of ranges do: the first pushed is the first popped, many at a time."""
    monkeypatch.setattr(limits, "MOST_CROSSINGS", 10_000)
    file = NsysFile(tmp_path / "trace.sqlite")
    for number in range(1000):
        file.range("one of many", number, 500 + number, THREAD)
    message = refusal(file.close())
    assert "NVTX_EVENTS" in message
    assert "cross" in message


def test_a_thread_for_each_range_and_call(tmp_path: Path) -> None:
    file = NsysFile(tmp_path / "trace.sqlite")
    for number in range(20_000):
        file.range("own", 10 * number, 10 * number + 9, global_id(number, number))
        file.call(10 * number + 1, 10 * number + 2, global_id(number, number), number)
        file.kernel(10 * number + 3, 10 * number + 4, global_id(number), number)
    account = collect_nsys(file.close(), tmp_path / "out")
    assert account["kernels_without_nvtx_range"] == 0
    kernels = tables.read(tables.GPU_KERNELS, tmp_path / "out" / "gpu_kernels.parquet")
    assert kernels["nvtx_id"].tolist() == list(range(20_000))


# --- SQL that is no data


@pytest.mark.parametrize(
    "make",
    [
        "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE n(start) AS "
        "(SELECT 1 UNION ALL SELECT start + 1 FROM n) SELECT start, start AS 'end' FROM n",
        "CREATE VIRTUAL TABLE CUPTI_ACTIVITY_KIND_KERNEL USING fts5(start, 'end')",
    ],
    ids=["a view without end", "a virtual table"],
)
def test_only_tables_are_read(tmp_path: Path, make: str) -> None:
    path = NsysFile(tmp_path / "trace.sqlite").close()
    sql = sqlite3.connect(path)
    sql.execute(make)
    sql.commit()
    sql.close()
    assert collect_nsys(path, tmp_path / "out")["rows"]["gpu_kernels"] == 0


def test_a_thousand_messages_of_the_profiler_are_one_sentence(tmp_path: Path) -> None:
    file = NsysFile(tmp_path / "trace.sqlite")
    for number in range(1000):
        file.insert("DIAGNOSTIC_EVENT", severity=3, text=f"{number} " + "x" * 10**4, timestamp=1)
    warnings = collect_nsys(file.close(), tmp_path / "out")["warnings"]
    (said,) = [warning for warning in warnings if "1,000 complaints" in warning]
    assert len(said) < 400
    assert (tmp_path / "out" / "nsys.log").read_text().count("x") == 10**7


@pytest.mark.parametrize("value", [None, b"\xff\x00", 3.5, "error", -1, 2**62])
@pytest.mark.parametrize("column", ["severity", "text", "timestamp"])
def test_strange_messages_of_the_profiler_are_survived(
    tmp_path: Path, column: str, value: object
) -> None:
    path = NsysFile(tmp_path / "trace.sqlite").close()
    with closing(sqlite3.connect(path)) as sql, sql:
        sql.execute("CREATE TABLE DIAGNOSTIC_EVENT (timestamp, severity, text)")
        row = {"timestamp": 1, "severity": 3, "text": "events were lost"} | {column: value}
        sql.execute("INSERT INTO DIAGNOSTIC_EVENT VALUES (:timestamp, :severity, :text)", row)
    collect_nsys(path, tmp_path / "out")

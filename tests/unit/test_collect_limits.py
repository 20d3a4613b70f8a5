"""What is kept of an export whose names, stacks or messages are longer than any real one's."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from kvscope import tables
from kvscope.base import limits
from kvscope.base.errors import BadInput
from kvscope.collect.collector import collect_nsys

from .nsys_fixture import NsysFile, global_id

pytestmark = pytest.mark.thorough

PROCESS, THREAD = global_id(7), global_id(7, 70)


def test_long_names_are_cut_and_a_warning_says_so(tmp_path: Path) -> None:
    file = NsysFile(tmp_path / "trace.sqlite")
    long = "ä" * 300_000
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
    """An export of ranges within each other."""
    file = NsysFile(path, capture_end=4 * depth)
    for number in range(depth):
        file.range(names(number), number, 4 * depth - number, THREAD)
    file.call(2 * depth, 2 * depth + 1, THREAD, 1)
    file.kernel(2 * depth, 2 * depth + 1, PROCESS, 1)
    return file.close()


def test_ranges_nested_without_end_are_followed_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    depth, most = 300, 100
    monkeypatch.setattr(limits, "DEEPEST_STACK", most)
    account = collect_nsys(deep(tmp_path / "trace.sqlite", depth), tmp_path / "out")
    ranges = tables.read(tables.NVTX_RANGES, tmp_path / "out" / "nvtx_ranges.parquet")
    assert ranges["depth"].tolist() == [*range(most), *[most] * (depth - most)]
    assert ranges["parent_id"][1:].tolist() == [*range(most), *[most - 1] * (depth - most - 1)]
    assert ranges["path"][3] == "0/1/2/3"
    (warning,) = [w for w in account["warnings"] if "nested" in w]
    assert f"{most} deep" in warning


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
    monkeypatch.setattr(limits, "MOST_CROSSINGS", 1000)
    file = NsysFile(tmp_path / "trace.sqlite")
    for number in range(300):
        file.range("one of many", number, 150 + number, THREAD)
    with pytest.raises(BadInput, match=r"trace.sqlite: table NVTX_EVENTS: .*cross"):
        collect_nsys(file.close(), tmp_path / "out")


def test_names_that_fill_the_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MOST_NAMES_BYTES", 1000)
    path = deep(tmp_path / "trace.sqlite", 20, lambda number: str(number) * 100)
    with pytest.raises(BadInput, match=r"trace.sqlite: its names take more than 1,000 bytes"):
        collect_nsys(path, tmp_path / "out")


def test_a_thread_for_each_range_and_call(tmp_path: Path) -> None:
    file = NsysFile(tmp_path / "trace.sqlite")
    for number in range(1000):
        file.range("own", 10 * number, 10 * number + 9, global_id(number, number))
        file.call(10 * number + 1, 10 * number + 2, global_id(number, number), number)
        file.kernel(10 * number + 3, 10 * number + 4, global_id(number), number)
    account = collect_nsys(file.close(), tmp_path / "out")
    assert account["kernels_without_nvtx_range"] == 0
    kernels = tables.read(tables.GPU_KERNELS, tmp_path / "out" / "gpu_kernels.parquet")
    assert kernels["nvtx_id"].tolist() == list(range(1000))


def test_a_thousand_messages_of_the_profiler_are_one_sentence(tmp_path: Path) -> None:
    file = NsysFile(tmp_path / "trace.sqlite")
    for number in range(1000):
        file.insert("DIAGNOSTIC_EVENT", severity=3, text=f"{number} " + "x" * 10**3, timestamp=1)
    warnings = collect_nsys(file.close(), tmp_path / "out")["warnings"]
    (said,) = [warning for warning in warnings if "1,000 complaints" in warning]
    assert len(said) < 400
    assert (tmp_path / "out" / "nsys.log").read_text().count("x") == 10**6


@pytest.mark.parametrize(
    "row",
    [{"severity": value} for value in (None, b"\xff\x00", 3.5, "error", -1, 2**62)]
    + [{"text": None}, {"text": b"\xff\x00"}, {"timestamp": "x"}, {"timestamp": 2**62}],
    ids=str,
)
def test_strange_messages_of_the_profiler_are_survived(
    tmp_path: Path, row: dict[str, object]
) -> None:
    path = NsysFile(tmp_path / "trace.sqlite").close()
    with closing(sqlite3.connect(path)) as sql, sql:
        sql.execute("CREATE TABLE DIAGNOSTIC_EVENT (timestamp, severity, text)")
        values = {"timestamp": 1, "severity": 3, "text": "events were lost"} | row
        sql.execute("INSERT INTO DIAGNOSTIC_EVENT VALUES (:timestamp, :severity, :text)", values)
    collect_nsys(path, tmp_path / "out")

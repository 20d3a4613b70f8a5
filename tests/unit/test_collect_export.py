"""What is not a whole export is refused in one sentence that names the file."""

import sqlite3
from pathlib import Path

import pytest

from kvscope.base.errors import BadInput
from kvscope.collect.collector import collect_nsys

from .nsys_fixture import NsysFile, global_id


def whole_export(path: Path) -> Path:
    file = NsysFile(path)
    for number in range(2000):
        file.kernel(number, number + 1, global_id(1), number)
    return file.close()


def refusal(path: Path) -> str:
    with pytest.raises(BadInput) as caught:
        collect_nsys(path, path.parent / "out")
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    assert not list((path.parent / "out").glob("*.json"))
    return message


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\x00", b"not a database" * 100])
def test_a_file_that_is_not_sqlite(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "trace.nsys-rep"
    path.write_bytes(content)
    assert "nsys export --type sqlite" in refusal(path)


def test_a_database_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    connection.close()
    assert "not an Nsight Systems export" in refusal(path)


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.99])
def test_a_truncated_file(tmp_path: Path, kept: float) -> None:
    path = whole_export(tmp_path / "trace.sqlite")
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])
    assert "truncated" in refusal(path)


def test_a_file_damaged_inside(tmp_path: Path) -> None:
    path = whole_export(tmp_path / "trace.sqlite")
    content = bytearray(path.read_bytes())
    middle = slice(8192, len(content) - 8192)
    content[middle] = b"\xab" * len(content[middle])
    path.write_bytes(content)
    assert "malformed" in refusal(path)


def test_a_table_without_times(tmp_path: Path) -> None:
    path = whole_export(tmp_path / "trace.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute('ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN "end"')
    connection.close()
    assert "table CUPTI_ACTIVITY_KIND_KERNEL has no column 'end'" in refusal(path)


def test_a_name_that_a_url_would_escape(tmp_path: Path) -> None:
    path = whole_export(tmp_path / "50% of #1?.sqlite")
    assert collect_nsys(path, tmp_path / "out")["rows"]["gpu_kernels"] == 2000

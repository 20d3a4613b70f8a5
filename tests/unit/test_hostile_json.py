"""JSON files of kvscope's own that are damaged, hostile, or no files at all."""

import json
import os
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings

from kvscope import limits, tables
from kvscope.collect.kv import zstd_lines
from kvscope.collect.nsys.export import NsysExport
from kvscope.errors import BadInput, CannotWrite
from kvscope.files import read_json
from kvscope.plan import documents
from kvscope.reading import read_bytes, short_repr, text_lines
from kvscope.run.locks import SUPERVISOR_LOCK, hold_lock_if_free

from .mutations import damaged, is_a_sentence, nested

pytestmark = pytest.mark.thorough

WHOLE = json.dumps({"schema": 1, "status": "complete", "files": {"é": [1.5, None]}}, indent=2)


@given(damaged(WHOLE.encode()))
@settings(deadline=None)
def test_a_damaged_file_is_a_value_or_refused(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.json"
        path.write_bytes(content)
        try:
            read_json(path)
        except BadInput as refusal:
            is_a_sentence(refusal, path)


@pytest.mark.parametrize("content", [nested(200_000), '{"a":' * 200_000, "1" * 5000, "\xff", ""])
def test_what_python_does_not_read_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(BadInput, match=r"run.json: not readable as JSON"):
        read_json(path)


def test_a_file_larger_than_any_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with path.open("wb") as file:
        file.truncate(limits.LONGEST_JSON_BYTES + 1)
    with pytest.raises(BadInput, match=r"run.json: more than 67,108,864 bytes"):
        read_json(path)


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"run.json: no such file"):
        read_json(tmp_path / "run.json")
    with pytest.raises(BadInput, match="not a regular file"):
        read_json(tmp_path)
    os.mkfifo(tmp_path / "pipe")  # which nothing writes to: opening it would wait for ever
    with pytest.raises(BadInput, match="pipe: not a regular file"):
        read_bytes(tmp_path / "pipe", 10)


def test_lines_are_given_with_their_ends_without_the_mark(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("\ufeffa,b\r\n1,é\n\n2".encode())
    assert list(text_lines(path, 10)) == ["a,b\r\n", "1,é\n", "\n", "2"]


@pytest.mark.parametrize(
    ("content", "wrong"), [(b"a\n" + b"b" * 11, "t.csv:2: longer than 10 bytes"), (b"\xff", "text")]
)
def test_a_line_that_is_too_long_or_no_text_is_refused(
    tmp_path: Path, content: bytes, wrong: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=wrong):
        list(text_lines(path, 10))


def test_a_long_value_is_shown_in_part() -> None:
    assert short_repr("short") == "'short'"
    for value in ("x" * 10**6, [0] * 10**6, {"a": [["b"] * 1000] * 1000}, 10**1000, "\n" * 1000):
        assert len(short_repr(value)) < 200
        assert "\n" not in short_repr(value)


READERS = [
    documents.load,
    read_json,
    lambda path: next(zstd_lines.read_lines(path)),
    lambda path: tables.read(tables.STEPS, path),
    NsysExport,
]


@pytest.mark.parametrize("read", READERS)
def test_no_reader_waits_for_a_writer_of_a_named_pipe(
    read: Callable[[Path], object], tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInput, match="pipe: not a regular file"):
        read(tmp_path / "pipe")


def test_a_lock_that_is_a_named_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / SUPERVISOR_LOCK)
    with pytest.raises(CannotWrite, match=SUPERVISOR_LOCK):
        hold_lock_if_free(tmp_path, SUPERVISOR_LOCK).__enter__()


@pytest.mark.parametrize("suffix", ["-journal", "-wal"])
def test_sqlite_opens_no_named_pipe_beside_an_export(suffix: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "e.sqlite")) as export:
        export.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
    os.mkfifo(tmp_path / f"e.sqlite{suffix}")
    with pytest.raises(BadInput, match=f"e.sqlite{suffix}: not a regular file"):
        NsysExport(tmp_path / "e.sqlite")

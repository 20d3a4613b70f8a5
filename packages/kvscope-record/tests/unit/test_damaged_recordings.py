"""Recordings of a server that are damaged or hostile: read as sound values, or refused."""

import json
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from test_replay import record

from kvscope import tables
from kvscope.base.errors import BadInput
from kvscope.tables.results import Run
from kvscope_record.collect import collect_recording
from kvscope_record.frames import HEADER_BYTES, Header
from kvscope_record.glance import look
from kvscope_record.segments import segment_paths
from tests.unit.mutations import NO_FILES, FileKind, altered_lines, nested

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

SEGMENT = "segment-00000001.jsonl.zst"


def recorded(path: Path) -> None:
    (result,) = segment_paths(record(path.parent / "recording"))
    result.rename(path)


def made() -> bytes:
    """The content of a segment."""
    with tempfile.TemporaryDirectory() as folder:
        recorded(Path(folder) / SEGMENT)
        return (Path(folder) / SEGMENT).read_bytes()


def framed(lines: bytes) -> bytes:
    """A segment of a frame with these lines and a sound header."""
    header = Header.decode(RECORDING)
    assert header is not None
    body = zstandard.compress(lines)
    return header._replace(body_bytes=len(body), body_crc=zlib.crc32(body)).encode() + body


RECORDING = made()
RECORDS = [
    json.loads(line)
    for line in zstandard.decompress(RECORDING[HEADER_BYTES:], 1 << 20).splitlines()
]


def read_recording(path: Path) -> None:
    """Collect a recording and look at it; what refuses one names the file or its directory."""
    try:
        collect_recording(path.parent)
        look(path.parent)
        for table in (tables.STEPS, tables.BATCH, tables.REQUESTS):
            Run(path.parent).read(table)
    except BadInput as error:
        raise BadInput(str(error).replace(str(path.parent), str(path), 1)) from None


KINDS = {
    kind.name: kind
    for kind in (
        FileKind(SEGMENT, RECORDING, read_recording, (altered_lines(RECORDS).map(framed),)),
    )
}
REFUSED = [
    (
        SEGMENT,
        framed(nested(200_000).encode() + b"\n"),
        "not readable as a segment of a recording",
    ),
]


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
@given(data=st.data())
@settings(max_examples=40)
def test_a_damaged_file_is_read_or_refused_in_one_sentence(
    kind: FileKind, data: st.DataObject
) -> None:
    kind.refusal(data.draw(kind.contents))


@pytest.mark.parametrize(("name", "content", "words"), REFUSED, ids=[w for _, _, w in REFUSED])
def test_a_file_is_refused_by_name_and_reason(name: str, content: bytes, words: str) -> None:
    assert words in (KINDS[name].refusal(content) or "")


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_a_sound_file_is_read_also_by_a_link(kind: FileKind, tmp_path: Path) -> None:
    assert kind.refusal(kind.sound) is None
    assert kind.refusal_by_a_link(tmp_path) is None


@pytest.mark.timeout(60)  # opening a named pipe waits for a writer
@pytest.mark.parametrize("make", NO_FILES, ids=lambda make: make.__name__)
@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_a_path_that_is_no_file_is_refused(
    kind: FileKind, make: Callable[[Path], Any], tmp_path: Path
) -> None:
    assert kind.refusal_of_no_file(make, tmp_path)

"""Files of a recording: segments of JSON lines in Zstandard, each readable by itself.

A segment begins with what a reader of it alone must know: facts, and the requests that were there.
What was written up to a flush is readable, whatever happened to the process afterwards.
"""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

import orjson
import zstandard

from kvscope.api.errors import BadInput
from kvscope.api.files import layout, limits, reading, zstd_lines
from kvscope_record.records import Event, Segment, decode, encode

_LEVEL = 1  # short lines of numbers become no smaller with more
_LINES_AT_ONCE = 64  # compressing gives the interpreter to the engine's thread, which costs both


def segment_paths(directory: Path) -> list[Path]:
    """The segments of a recording, oldest first; their names sort so."""
    return sorted(directory.glob(layout.SEGMENTS))


def is_recording(directory: Path) -> bool:
    """True if a directory has a recording."""
    return bool(segment_paths(directory))


class SegmentWriter:
    """The segment that is being written. OSError is raised as it comes."""

    def __init__(self, directory: Path, number: int) -> None:
        self.path = directory / f"segment-{number:08d}.jsonl.zst"
        self.bytes = 0
        self.began = time.monotonic()
        self._file: IO[bytes] = self.path.open("xb", buffering=0)
        self._lines: list[bytes] = []
        # The checksum is at its end: a bit that is flipped later may decompress, too.
        self._zstd = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compressobj()

    def write(self, event: Event) -> None:
        """Add an event; it is in the file after the next flush."""
        self._lines.append(orjson.dumps(encode(event)))
        if len(self._lines) == _LINES_AT_ONCE:
            self._compress()

    def flush(self) -> None:
        """Hand everything to the operating system."""
        self._compress()
        self._append(self._zstd.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))

    def close(self) -> None:
        """End the file."""
        try:
            self._compress()
            self._append(self._zstd.flush())
        finally:
            self._file.close()

    @property
    def removed(self) -> bool:
        """True if the file was removed while it is written to."""
        return os.fstat(self._file.fileno()).st_nlink == 0

    def abandon(self) -> None:
        """Close the file unfinished; flushed records are readable."""
        self._file.close()

    def _compress(self) -> None:
        lines, self._lines = [*self._lines, b""], []
        self._append(self._zstd.compress(b"\n".join(lines)))

    def _append(self, data: bytes) -> None:
        while data:
            written = self._file.write(data)
            self.bytes += written
            data = data[written:]


def remove_oldest(directory: Path, keep_bytes: int, minutes: float | None) -> None:
    """Remove the oldest segments beyond a size or an age; the newest one stays."""
    files = []
    for path in segment_paths(directory):
        with suppress(FileNotFoundError):  # somebody removed it meanwhile
            files.append((path, path.stat()))
    total = sum(stat.st_size for _, stat in files)
    oldest = time.time() - minutes * 60 if minutes is not None else 0.0
    for path, stat in files[:-1]:
        if total <= keep_bytes and stat.st_mtime >= oldest:
            return
        path.unlink(missing_ok=True)
        total -= stat.st_size


def read_segment(path: Path) -> Iterator[Event]:
    """The events of a segment, up to where it was cut, if it was.

    A segment that was removed meanwhile, as the oldest, or of which not even the beginning was
    written has none. BadInput if it is damaged.
    """
    if not os.path.lexists(path):
        return
    with reading.refusing(path, "a segment of a recording"):
        for line in zstd_lines(path, limits.LONGEST_FLUSH_BYTES, may_be_cut=True):
            if (event := decode(orjson.loads(line))) is not None:
                yield event


def next_number(directory: Path) -> int:
    """The number of the next segment of a directory."""
    numbers = [0]
    for path in segment_paths(directory):
        with suppress(ValueError):
            numbers.append(int(path.name.split("-")[1].split(".")[0]))
    return max(numbers) + 1


def header(path: Path) -> Segment | None:
    """The first record of a segment; None if it was not written yet."""
    first = next(read_segment(path), None)
    if first is not None and not isinstance(first, Segment):
        raise BadInput(f"{path}: does not begin as a segment of a recording")
    return first

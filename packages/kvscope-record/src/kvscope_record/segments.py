"""Files of a recording: segments, each readable by itself, of frames.

A segment begins with what a reader of it alone must know: facts, and the requests that were there.
A frame is whole or not there, whatever happened to the process, and sound or known to be damaged.
"""

import fnmatch
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from kvscope.api.errors import BadInput
from kvscope.api.files import layout, reading
from kvscope_record import frames
from kvscope_record.records import Event

_ZSTANDARD = b"\x28\xb5\x2f\xfd"


def segment_paths(directory: Path) -> list[Path]:
    """The segments of a recording, oldest first; their names sort so."""
    names = os.listdir(directory) if directory.is_dir() else ()
    return [directory / name for name in sorted(fnmatch.filter(names, layout.SEGMENTS))]


def is_recording(directory: Path) -> bool:
    """True if a directory has a recording."""
    return bool(segment_paths(directory))


class SegmentWriter:
    """The segment that is being written. OSError is raised as it comes."""

    def __init__(self, directory: Path, number: int, session: int = 1, frame: int = 0) -> None:
        self.path = directory / f"segment-{number:08d}.jsonl.zst"
        self.bytes = 0  # of whole frames
        self.began = time.monotonic()
        self._file: IO[bytes] = self.path.open("xb", buffering=0)
        self.next_frame = frame  # of the session, once the last one is written
        self._frame = frames.FrameWriter(session, frame)

    def write(self, event: Event) -> None:
        """Add an event; it is in the file after the next flush."""
        self._frame.write(event)

    def flush(self) -> None:
        """Hand everything to the operating system, as a frame."""
        self._append(self._frame.take())
        self.next_frame = self._frame.number

    def close(self) -> None:
        """End the file."""
        self.flush()
        self._file.close()

    @property
    def removed(self) -> bool:
        """True if the file was removed while it is written to."""
        return os.fstat(self._file.fileno()).st_nlink == 0

    def abandon(self) -> None:
        """Close the file after its last whole frame; without one, remove it."""
        with suppress(OSError, ValueError):  # a closed file is whole
            self._file.truncate(self.bytes)
        self._file.close()
        if not self.bytes:
            self.path.unlink(missing_ok=True)

    def _append(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[self._file.write(left) :]
        self.bytes += len(data)


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


def require_readable(path: Path) -> None:
    """BadInput if a file is of an earlier version, or no segment of a recording at all."""
    if not path.exists():  # removed meanwhile, as the oldest
        return
    with reading.open_file(path) as file:
        begin = file.read(len(_ZSTANDARD))
    if begin == _ZSTANDARD:
        raise BadInput(
            f"{path}: a recording of an earlier version of kvscope, which this one does not read; "
            "collect it with the version that recorded it"
        )


def read_segment(path: Path) -> Iterator[Event]:
    """The events of a segment's whole frames.

    A segment that was removed meanwhile, as the oldest, or of which not even the beginning was
    written has none. BadInput if sound frames have no records.
    """
    require_readable(path)
    for frame in frames.frames(path):
        yield from frame.events() or ()


def next_numbers(directory: Path) -> tuple[int, int]:
    """The number of the next segment's file of a directory, and that of its next session."""
    numbers, sessions = [0], [0]
    for path in segment_paths(directory):
        with suppress(ValueError):
            numbers.append(int(path.name.split("-")[1].split(".")[0]))
        if (header := frames.first_header(path)) is not None:
            sessions.append(header.session)
    return max(numbers) + 1, max(sessions) + 1

"""Frames of a segment: what was recorded in half a second, complete by itself.

A frame is a header and a Zstandard frame of JSON lines. The header is a skippable frame of
Zstandard, so `zstdcat` shows the lines alone. It has the frame's place, times and passes, sums of
what they did, a checksum of the lines and one of itself: a stretch is found, damage noticed and the
server watched without decompressing.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple, Self

import orjson
import zstandard

from kvscope.api.errors import BadInput
from kvscope.api.files import limits, reading
from kvscope_record.records import (
    Arrival,
    Ended,
    Event,
    Live,
    Preempted,
    Sampled,
    Scheduled,
    Segment,
    decode,
    encode,
)

_LEVEL = 1  # short lines of numbers become no smaller with more
_FIELDS = struct.Struct("<8s 5I 14q I")
_CHECKSUM = struct.Struct("<I")
_MAGIC = b"\x5b\x2a\x4d\x18" + (_FIELDS.size - 4 + _CHECKSUM.size).to_bytes(4, "little")
"""A skippable frame of Zstandard, and its size."""
_TAG = b"kvs2"
HEADER_BYTES = 4 + _FIELDS.size + _CHECKSUM.size
_SEARCHED_BYTES = 1 << 20
_GIVEN, _PREEMPTED, _HIT, _LOOKED_UP = range(4)  # sums of a frame


class Header(NamedTuple):
    """The header of a frame. Times are ns of the server's monotonic clock."""

    recording: int  # checksum of its name: two servers' may have the same session
    session: int  # number of the server in this directory, from 1
    segment: int  # number of the segment in the session, from 0
    frame: int  # number in the session, from 0
    body_bytes: int
    first_ns: int
    last_ns: int
    to_utc_ns: int  # what the clock lacks to UTC
    first_step: int  # of the passes that were scheduled in it
    next_step: int
    next_request: int  # number of the request that comes next
    blocks_total: int
    blocks_free: int  # of the newest pass
    running: int  # requests of the newest pass
    waiting: int  # requests after it was scheduled
    tokens: int  # that its passes gave
    preemptions: int
    hit_tokens: int  # found in the prefix cache by requests that were admitted
    looked_up_tokens: int  # of these requests' prompts
    body_crc: int

    @property
    def passes(self) -> int:
        """Passes that were scheduled in it."""
        return self.next_step - self.first_step

    def encode(self) -> bytes:
        """The bytes of the header."""
        fields = _FIELDS.pack(_MAGIC, *self)
        content = fields[:8] + _TAG + fields[8:]
        return content + _CHECKSUM.pack(zlib.crc32(content))

    @classmethod
    def decode(cls, data: bytes) -> Self | None:
        """The header that bytes begin with; None if there is no sound one."""
        if len(data) < HEADER_BYTES or data[:8] != _MAGIC or data[8:12] != _TAG:
            return None
        content = data[: HEADER_BYTES - _CHECKSUM.size]
        if _CHECKSUM.unpack_from(data, len(content))[0] != zlib.crc32(content):
            return None
        return cls(*_FIELDS.unpack(content[:8] + content[12:])[1:])


class FrameWriter:
    """Makes the frames of a segment."""

    def __init__(self, session: int, number: int) -> None:
        self.number = number  # of the next frame of the session
        self._session = session
        self._recording = self._segment = 0
        self._lines: list[bytes] = []
        self._zstd = zstandard.ZstdCompressor(level=_LEVEL)
        self._to_utc_ns = self._next_step = self._next_request = 0
        self._first_ns = self._last_ns = 0
        self._first_step = 0
        self._prompts: dict[int, int] = {}  # tokens, of requests that have not ended
        self._blocks_total = 0
        self._now = 0, 0, 0  # of the newest pass
        self._sums = [0, 0, 0, 0]

    def write(self, event: Event) -> None:
        """Add an event to the frame."""
        if isinstance(event, Segment):
            self._recording = zlib.crc32(str(event.facts["recording"]).encode())
            self._segment, self._to_utc_ns = event.number, event.utc_ns - event.time_ns
            self._first_step = self._next_step = event.step
            self._next_request = event.next_request
            self._first_ns = self._last_ns = event.time_ns
            self._blocks_total = event.facts.get("kv_blocks_total", 0)
        elif isinstance(event, Arrival):
            self._next_request = event.request + 1
            self._last_ns = event.time_ns
            self._prompts[event.request] = event.prompt_tokens
        elif isinstance(event, Live):
            self._prompts[event.request] = event.prompt_tokens
        elif isinstance(event, Ended):
            self._prompts.pop(event.request, None)
        elif isinstance(event, Scheduled):
            self._next_step, self._last_ns = event.step + 1, event.end_ns
            self._now = event.blocks_free, len(event.requests), event.waiting
            for request, tokens in event.hits:
                self._sums[_HIT] += tokens
                self._sums[_LOOKED_UP] += self._prompts.get(request, 0)
        elif isinstance(event, Sampled):
            self._last_ns = event.end_ns
            self._sums[_GIVEN] += sum(event.tokens)
        elif isinstance(event, Preempted):
            self._sums[_PREEMPTED] += 1
        self._lines.append(orjson.dumps(encode(event), option=orjson.OPT_APPEND_NEWLINE))

    def take(self) -> bytes:
        """The bytes of the frame, if it has an event; the next one begins."""
        if not self._lines:
            return b""
        body = self._zstd.compress(b"".join(self._lines))  # lets the engine's thread go on
        header = Header(
            *(self._recording, self._session, self._segment, self.number, len(body)),
            *(self._first_ns, max(self._first_ns, self._last_ns), self._to_utc_ns),
            *(self._first_step, self._next_step, self._next_request),
            *(self._blocks_total, *self._now, *self._sums, zlib.crc32(body)),
        )
        self._sums = [0, 0, 0, 0]
        self._lines, self.number = [], self.number + 1
        self._first_step, self._first_ns = self._next_step, header.last_ns
        return header.encode() + body


@dataclass(frozen=True)
class Frame:
    """A frame in a file, whose header is sound."""

    path: Path
    offset: int  # of the header
    header: Header

    @property
    def after(self) -> int:
        """The offset behind it."""
        return self.offset + HEADER_BYTES + self.header.body_bytes

    def events(self) -> list[Event] | None:
        """The frame's events; None if its bytes are not those that were written.

        BadInput if they are, and are no records.
        """
        with reading.open_file(self.path) as file:
            file.seek(self.offset + HEADER_BYTES)
            body = file.read(self.header.body_bytes)
        if zlib.crc32(body) != self.header.body_crc or len(body) != self.header.body_bytes:
            return None
        with reading.refusing(self.path, "a segment of a recording"):
            size = zstandard.frame_content_size(body)
            if not 0 <= size <= limits.LONGEST_FLUSH_BYTES:
                raise BadInput(f"{self.path}: a frame of {size:,} bytes, more than one has")
            lines = zstandard.ZstdDecompressor().decompress(body, max_output_size=size)
            records = (decode(orjson.loads(line)) for line in lines.splitlines())
            return [record for record in records if record is not None]


def first_header(path: Path) -> Header | None:
    """The header with which a file begins; None if it has none, or is not there."""
    try:
        with reading.open_file(path) as file:
            return Header.decode(file.read(HEADER_BYTES))
    except BadInput:
        if path.exists():
            raise
        return None


def frames(path: Path, offset: int = 0) -> Iterator[Frame]:
    """The frames of a file from an offset on; what is no frame is passed over.

    A frame that the end of the file cuts is none. Nothing is there of a file that was removed.
    """
    try:
        file = reading.open_file(path)
    except BadInput:
        if path.exists():
            raise
        return
    with file:
        end = file.seek(0, 2)
        while (place := _next_header(file, offset, end)) is not None:
            offset, header = place
            frame = Frame(path, offset, header)
            if frame.after <= end:
                yield frame
                offset = frame.after
            else:  # cut, or its end was; whole frames may follow
                offset += 1


def _next_header(file: IO[bytes], offset: int, end: int) -> tuple[int, Header] | None:
    """The next sound header at an offset or behind it."""
    while offset + HEADER_BYTES <= end:
        file.seek(offset)
        data = file.read(HEADER_BYTES)
        if (header := Header.decode(data)) is not None:
            return offset, header
        place = -1
        while place < 0 and offset + HEADER_BYTES <= end:
            file.seek(offset + 1)
            data = file.read(_SEARCHED_BYTES)
            place = data.find(_MAGIC + _TAG)
            offset += 1 + (place if place >= 0 else max(1, len(data) - HEADER_BYTES))
    return None

"""Lines of Zstandard files, read with bounded memory."""

from collections.abc import Iterator
from pathlib import Path

import zstandard

from kvscope.base.errors import BadInput
from kvscope.base.reading import open_file, refusing

# A block of Zstandard grows by 2^15 at most: what is decompressed at once stays below 128 MiB.
_CHUNK_BYTES = 1 << 12


def zstd_lines(
    path: Path, longest: int, remedy: str = "", may_be_cut: bool = False
) -> Iterator[bytes]:
    """Yield the lines of a Zstandard file, of one frame or several, without their line ends.

    BadInput if it is damaged, a line is longer than `longest` bytes (`remedy` says what helps), or
    the file ends within a line or a frame, unless it `may_be_cut`.
    """
    pieces: list[bytes] = []
    length, number = 0, 1
    for chunk in _decompressed(path, may_be_cut):
        # Most chunks have no newline, and `in` finds that many times faster than `split`.
        for place, piece in enumerate(chunk.split(b"\n") if b"\n" in chunk else [chunk]):
            if place:  # a newline was before it
                yield b"".join(pieces)
                pieces, length, number = [], 0, number + 1
            if piece:
                pieces.append(piece)
                length += len(piece)
            if length > longest:
                raise BadInput(f"{path}: line {number} is longer than {longest:,} bytes{remedy}")
    if pieces and not may_be_cut:
        raise BadInput(f"{path}: the last line has no end; the file was cut")


def _decompressed(path: Path, may_be_cut: bool) -> Iterator[bytes]:
    frame = None  # the frame being read; writers may have put several in a row
    with open_file(path) as file, refusing(path, "Zstandard"):
        while chunk := file.read(_CHUNK_BYTES):
            while chunk:
                if frame is None or frame.eof:
                    frame = zstandard.ZstdDecompressor().decompressobj()
                yield frame.decompress(chunk)
                chunk = frame.unused_data
    if not (may_be_cut or (frame and frame.eof)):
        raise BadInput(f"{path}: ends within its Zstandard frame; the file was cut")

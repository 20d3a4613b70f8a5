"""Reader of the lines of a Zstandard file with bounded memory."""

from collections.abc import Iterator
from pathlib import Path

import zstandard

from kvscope import limits
from kvscope.errors import BadInput
from kvscope.reading import open_file

# A block of Zstandard grows by 2^15 at most: what is decompressed at once stays below 128 MiB.
_CHUNK_BYTES = 1 << 12


def read_lines(path: Path) -> Iterator[bytes]:
    """Read the lines of a file, without the newline.

    Raises BadInput if the file is truncated, a line is longer than limits.LONGEST_FLUSH_BYTES, or
    the text is more than limits.MOST_EXPANSION times the file's size.
    """
    pieces: list[bytes] = []
    length, number = 0, 1
    for chunk in _decompressed(path):
        # Most chunks have no newline, and `in` finds that many times faster than `split`.
        for place, piece in enumerate(chunk.split(b"\n") if b"\n" in chunk else [chunk]):
            if place:  # a newline was before it
                yield b"".join(pieces)
                pieces, length, number = [], 0, number + 1
            if piece:
                pieces.append(piece)
                length += len(piece)
            if length > limits.LONGEST_FLUSH_BYTES:
                raise BadInput(
                    f"{path}: line {number} is longer than {limits.LONGEST_FLUSH_BYTES:,} bytes; "
                    "trace fewer heads, by tracing.head_stride"
                )
    if pieces:
        raise BadInput(f"{path}: the last line has no end; the file was cut")


def _decompressed(path: Path) -> Iterator[bytes]:
    frame = None  # the one that is being read; writers may have put several in a row
    read = written = 0
    try:
        with open_file(path) as file:
            while chunk := file.read(_CHUNK_BYTES):
                read += len(chunk)
                while chunk:
                    if frame is None or frame.eof:
                        frame = zstandard.ZstdDecompressor().decompressobj()
                    piece = frame.decompress(chunk)
                    written += len(piece)
                    if written > limits.FREE_BYTES + limits.MOST_EXPANSION * read:
                        most = limits.MOST_EXPANSION
                        raise BadInput(f"{path}: its text is more than {most} times its size")
                    yield piece
                    chunk = frame.unused_data
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from None
    except zstandard.ZstdError as error:
        raise BadInput(f"{path}: not readable as Zstandard ({error})") from None
    if frame is None or not frame.eof:
        raise BadInput(f"{path}: ends within its Zstandard frame; the file was cut")

"""Reading files that others wrote: no more of them than is said, and one sentence if that fails."""

import stat
from collections.abc import Iterator
from pathlib import Path
from reprlib import Repr
from typing import IO, Any

from kvscope.errors import BadInput

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60
_SHORT.maxlevel = 2


def short_repr(value: Any) -> str:
    """A value as a message shows it: one line, of which much is left out if it is long."""
    return _SHORT.repr(value)


def one_line(error: object, longest: int = 200) -> str:
    """What another library says of a failure, as part of a sentence."""
    said = " ".join(str(error).split()).rstrip(".")
    return said if len(said) <= longest else f"{said[:longest]}…"


def read_bytes(path: Path, most: int) -> bytes:
    """A file's content; BadInput if it is no regular file, cannot be read, or has more bytes."""
    with open_file(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise BadInput(f"{path}: more than {most:,} bytes, the most that is read of such a file")
    return content


def text_lines(path: Path, longest: int) -> Iterator[str]:
    """The lines of a UTF-8 file with their ends; BadInput names one of more than `longest` bytes.

    A byte order mark at the file's start is not part of the first line.
    """
    with open_file(path) as file:
        number = 0
        while line := file.readline(longest + 1):
            number += 1
            if len(line) > longest:
                raise BadInput(f"{path}:{number}: longer than {longest:,} bytes")
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                reason = f"{error.reason} at byte {error.start} of line {number}"
                raise BadInput(f"{path}: cannot be read as text ({reason})") from None


def open_file(path: Path) -> IO[bytes]:
    """A file, open for reading; BadInput if it is no regular file or cannot be read.

    To open a named pipe would wait for a writer that may never come.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise BadInput(f"{path}: not a regular file")
        return path.open("rb")
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from None

"""The boundary that every file is read through: bounded, and with errors of one sentence.

Nothing behind it guards against damage: what `refusing` covers gives a sound value or BadInput.
"""

import hashlib
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from gzip import GzipFile
from pathlib import Path
from reprlib import Repr
from typing import IO, TYPE_CHECKING, Any, cast

from kvscope.base.errors import BadInput, KvscopeError

if TYPE_CHECKING:
    from pydantic import ValidationError

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60
_SHORT.maxlevel = 2


def short_repr(value: Any) -> str:
    """A value for an error message: its repr on one line, shortened if it is long."""
    return _SHORT.repr(value)


def one_line(error: object, longest: int = 200) -> str:
    """The message of a library's error on one line, at most `longest` characters."""
    line = " ".join(str(error).split()).rstrip(".")
    return line if len(line) <= longest else f"{line[:longest]}…"


def describe_error(error: BaseException) -> str:
    """'KeyError: 'x'', on one line."""
    return one_line(f"{type(error).__name__}: {error}").rstrip(": ")


def last_line(text: str) -> str:
    """The last line of a program's output that is not empty; '' without such a line."""
    return (text.strip().splitlines() or [""])[-1].strip()


@contextmanager
def refusing(path: Path, kind: str) -> Iterator[None]:
    """Raise BadInput for any error of a library that reads `path`, a file of this `kind`.

    Libraries document few of the errors that a damaged file makes them raise, so all are taken for
    one.
    """
    try:
        yield
    except KvscopeError:
        raise
    except Exception as error:
        why = one_line(error) or type(error).__name__
        raise BadInput(f"{path}: not readable as {kind} ({why})") from None


def read_bytes(path: Path, most: int) -> bytes:
    """Return a file's content; BadInput if it is unreadable or larger than `most` bytes."""
    with open_file(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise BadInput(f"{path}: more than {most:,} bytes, the most that is read of such a file")
    return content


def text_lines(path: Path, longest: int) -> Iterator[str]:
    """Yield the lines of a UTF-8 file with their line ends, without a byte order mark.

    A file whose name ends in .gz is unpacked. BadInput if the file cannot be read, a line is longer
    than `longest` bytes, or not UTF-8.
    """
    with open_file(path) as content, refusing(path, "text"):
        file = cast(IO[bytes], GzipFile(fileobj=content)) if path.suffix == ".gz" else content
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
    """Open a file for reading; BadInput if it is not a regular file or cannot be read.

    Opening a named pipe would block until a writer opens it, so it is refused first.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise BadInput(f"{path}: not a regular file")
        return path.open("rb")
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from None


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, as hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def first_fault(error: "ValidationError") -> tuple[str, str]:
    """Dotted key and message of the first fault that pydantic found; the key '' is the whole
    file."""
    first = error.errors(include_url=False)[0]
    return ".".join(map(str, first["loc"])), first["msg"]


def damage(error: "ValidationError") -> str:
    """The first fault that pydantic found, for a file: 'damaged, key files.a: Field required'."""
    key, message = first_fault(error)
    return f"damaged, key {short_repr(key)[1:-1]}: {message}" if key else f"damaged, {message}"

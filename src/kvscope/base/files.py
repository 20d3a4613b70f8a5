"""Atomic writes: a reader sees the old content of a file or the new one, never a part."""

import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kvscope.base import limits
from kvscope.base.errors import BadInput, CannotWrite
from kvscope.base.reading import read_bytes, refusing
from kvscope.base.reading import sha256_of as sha256_of

TEMPORARY = ".tmp"  # suffix of a file that is being written

MAX_NAME = 200
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_NAME - 1}}}")


def check_name(name: Any, what: str) -> str:
    """Return `name` if it is safe as one component of a path; else raise BadInput.

    Every name from a file or the command line that becomes part of a path is checked here: names of
    studies, ids of experiments. `what` names its role in the message.
    """
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    text = repr(name)
    shown = text if len(text) <= 60 else text[:57] + "..."
    raise BadInput(
        f"{what} is {shown} but must be a name: at most {MAX_NAME} letters, digits, '.', '_' and "
        "'-', the first a letter or digit"
    )


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success fsync the file and rename it to `path`.

    The temporary file is removed if the block raises; it is locked, so that others see whether its
    process was killed (`remove_temporaries`). The file gets the permissions that the umask
    allows. CannotWrite names the path and the system's reason if the file cannot be written;
    BadInput refuses a device or a pipe, which a file would replace.
    """
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise BadInput(f"{path}: not a regular file, so that it cannot be written as a whole")
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=TEMPORARY)
    except OSError as error:
        raise CannotWrite(path, error) from None
    temporary = Path(name)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~umask())  # mkstemp makes files private; results are to be shared
        temporary.replace(path)
    except OSError as error:
        raise CannotWrite(path, error) from None
    finally:
        temporary.unlink(missing_ok=True)
        os.close(handle)


def umask() -> int:
    """The process's umask. POSIX can only read it by setting it, so it is set twice."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def follow_umask(directory: Path) -> None:
    """Set the permissions of the files in a directory to those that the umask allows.

    For files that other programs wrote: processes started by nsys have a umask that nsys sets.
    """
    for path in directory.iterdir():
        if path.is_file():
            path.chmod(0o666 & ~umask())


def make_directory(path: Path) -> None:
    """Create a directory and its parents; BadInput or CannotWrite names it if that fails."""
    if path.exists() and not path.is_dir():
        raise BadInput(f"{path}: is a file but must be a directory; choose another one with --out")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotWrite(path, error) from None


def remove(path: Path) -> None:
    """Remove a file, or a directory with its contents; nothing happens if it does not exist."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise CannotWrite(path, error) from None


def remove_temporaries(directory: Path) -> None:
    """Remove the temporary files that killed processes left in `directory`."""
    for path in abandoned_temporaries(directory):
        remove(path)


def abandoned_temporaries(directory: Path) -> list[Path]:
    """The temporary files in `directory` that no process writes."""
    return [path for path in directory.glob(f".*.*{TEMPORARY}") if _is_unlocked(path)]


def _is_unlocked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # in use, removed meanwhile, or of another user
        return False
    return True


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_text_if_changed(path: Path, text: str) -> bool:
    """Write `text` unless `path` already holds these bytes; returns whether it was written.

    An unchanged file keeps its modification time, so that Snakemake does not remake what depends on
    it.
    """
    if path.is_file() and path.read_bytes() == text.encode():
        return False
    write_text(path, text)
    return True


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically; NaN and infinities are refused."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file; BadInput names the file if it is absent, too large, or not JSON."""
    content = read_bytes(path, limits.LONGEST_JSON_BYTES)
    with refusing(path, "JSON"):
        return json.loads(content.decode())

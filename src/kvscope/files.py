"""Writing files so that a reader sees the old content or the new, never half of either."""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvscope import limits
from kvscope.errors import BadInput
from kvscope.reading import read_bytes


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; on success fsync it and rename it to `path`.

    The temporary file is removed if the block raises.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)  # mkstemp makes files private; results are to be shared
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_text_if_changed(path: Path, text: str) -> bool:
    """Write `text` unless `path` holds these very bytes already; tell whether it was written.

    A file whose bytes stay keeps its modification time, so that nothing that depends on it
    is made again.
    """
    if path.exists() and path.read_bytes() == text.encode():
        return False
    write_text(path, text)
    return True


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically; NaN and infinities are refused."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file; BadInput names the file if it is absent, too large, or not JSON."""
    content = read_bytes(path, limits.LONGEST_JSON_BYTES)
    try:
        return json.loads(content.decode())
    except RecursionError:
        raise BadInput(f"{path}: not readable as JSON (nested too deeply)") from None
    except ValueError as error:  # no UTF-8, no JSON, or a number of thousands of digits
        raise BadInput(f"{path}: not readable as JSON ({error})") from None


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, as hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

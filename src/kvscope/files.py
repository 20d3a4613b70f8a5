"""Writing files so that a reader sees the old content or the new, never half of either."""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvscope.errors import BadInput

MAX_NAME = 200
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_NAME - 1}}}")


def check_name(name: Any, what: str) -> str:
    """The name, if it is one that can become a step of a path and lead nowhere else.

    Every name that a file or the command line gives and that becomes a path goes through here: a
    study's, an experiment's id. BadInput says `what` it is and what is allowed.
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
    """Read a JSON file; BadInput names the file if it is absent or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from None
    except RecursionError:
        raise BadInput(f"{path}: not readable as JSON (nested too deep)") from None
    except ValueError as error:  # not JSON, not UTF-8, or a number of thousands of digits
        raise BadInput(f"{path}: not readable as JSON ({error})") from None


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, as hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

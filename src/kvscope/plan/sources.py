"""The files of a workload: their paths and the SHA-256 of their content.

An experiment stores both. Its id depends on the content and not on the path: an edited file makes
another experiment, a moved file does not.
"""

import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any, NamedTuple

from kvscope.base.errors import BadInput
from kvscope.base.reading import sha256_of

if TYPE_CHECKING:
    from kvscope.plan.workload import Workload

# A copy of ShareGPT has 0.6 GiB. Readers hold such files in memory.
MAX_BYTES = 4 * 2**30


class Location(NamedTuple):
    """The place of a value: in words, and the directory that a relative path refers to."""

    words: str
    directory: Path


class SourceFile(NamedTuple):
    """A file of a workload: the key that names it, its path, the SHA-256 of its content."""

    key: str
    path: str
    sha256: str


def source_files(workload: "Workload") -> list[SourceFile]:
    """The files that a workload's keys name."""
    files = ((k, getattr(workload, k), getattr(workload, h)) for k, h in workload.files.items())
    return [
        SourceFile(f"workload.{k}", path, sha256) for k, path, sha256 in files if path is not None
    ]


def fill_in(
    workload: dict[str, Any], kind: "type[Workload]", place: Callable[[str], Location]
) -> dict[str, Any]:
    """Return the values of a workload with normalized paths and the SHA-256 of each file.

    `kind` is the workload's class; `place` maps a dotted key to the place of its value. BadInput if
    a file is missing, or differs from a SHA-256 that the configuration gives.
    """
    for number, (key, digest) in enumerate(kind.files.items()):
        value, where = workload.get(key), place(f"workload.{key}")
        if value is None and number == 0:
            raise BadInput(
                f"workload.{key} is null ({where.words}) but must name {kind.wanted}; set "
                f"workload.{key}=FILE"
            )
        if not isinstance(value, str):
            continue  # null, or for the schema to refuse
        path = _stored_path(value, where)
        remedy = "" if number else f"; it must name {kind.wanted}"
        sha256 = _sha256(path, f"workload.{key} is {value!r:.500} ({where.words})", remedy)
        declared = workload.get(digest)
        if declared is not None and declared != sha256:
            where = place(f"workload.{digest}")
            raise BadInput(
                f"workload.{digest} is {declared!r:.80} ({where.words}) but {path!r:.500} has "
                f"{sha256}; leave it out, or restore the file that it belongs to"
            )
        workload = workload | {key: path, digest: sha256}
    return workload


def verify(workload: "Workload") -> None:
    """Raise BadInput unless every file of a planned workload exists and is unchanged."""
    for key, path, sha256 in source_files(workload):
        current = _sha256(path, f"{key} is {path!r}, as planned,")
        if current != sha256:
            raise BadInput(
                f"{key} is {path!r}, whose content has changed since the experiment was planned "
                f"(SHA-256 {current[:10]}… instead of {sha256[:10]}…); plan again"
            )


def is_unchanged(path: str, sha256: str) -> bool:
    """Whether a file exists and its content has this SHA-256."""
    try:
        return _sha256(path, "") == sha256
    except BadInput:
        return False


def _stored_path(value: str, where: Location) -> str:
    """The stored path: relative if it is below the working directory, else absolute."""
    expanded = where.directory.absolute() / os.path.expanduser(value)
    try:
        path = expanded.parent.resolve() / expanded.name
    except (OSError, ValueError, RuntimeError):  # too long, with a zero byte, or a loop of links
        path = expanded
    cwd = Path.cwd()
    return str(path.relative_to(cwd) if path.is_relative_to(cwd) else path)


def _sha256(path: str, what: str, remedy: str = "") -> str:
    """SHA-256 of a file's content; BadInput, beginning with `what`, if it cannot be read."""
    try:
        path.encode()
        status = os.stat(path)
        if not S_ISREG(status.st_mode):
            raise BadInput(f"{what} but {path!r:.500} is no file")
        if status.st_size > MAX_BYTES:
            raise BadInput(f"{what} but {path!r:.500} is larger than {MAX_BYTES // 2**30} GiB")
        return _cached_sha256(os.path.abspath(path), status.st_mtime_ns, status.st_size)
    except FileNotFoundError:
        raise BadInput(f"{what} but there is no file {path!r:.500}{remedy}") from None
    except OSError as error:
        raise BadInput(f"{what} but {path!r:.500} cannot be read ({error.strerror})") from None
    except ValueError:  # a zero byte, or a name that is not UTF-8
        raise BadInput(f"{what} but that is no name of a file") from None


@lru_cache(maxsize=1024)
def _cached_sha256(path: str, mtime_ns: int, size: int) -> str:
    """SHA-256 of a file, cached by path, modification time and size."""
    return sha256_of(Path(path))

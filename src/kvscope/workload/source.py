"""The file that a workload is made of."""

from pathlib import Path

from kvscope.errors import BadInput

# Modification time (ns) and size: they change when the file does, and key the caches of its
# content, so that a thousand experiments read it once.
Stamp = tuple[int, int]


def stamp(path: str, expected: str) -> Stamp:
    """The file's stamp; BadInput says what workload.path must name if there is no such file."""
    try:
        status = Path(path).stat()
    except OSError as error:
        raise BadInput(
            f"workload.path is {path!r}, which cannot be read ({error.strerror}), but must name "
            f"{expected}"
        ) from None
    return status.st_mtime_ns, status.st_size

"""Python packages on the node's own disks: python -m submitit_packs.stage ARCHIVE PACK_DIRECTORY.

Many processes that import from a shared file system at the same time wait for it for minutes. Here
an archive of the environment's site-packages is unpacked once on each node. What is printed is to
be the first entry of PYTHONPATH; without room for it, or with an archive that is older than the
environment, nothing is printed, the exit code is 1, and the shared environment serves. The pack's
directory has a sentence of each node.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from submitit_packs.directory import write_json
from submitit_packs.member import host, scratch_parent
from submitit_packs.processes import run

BLOCK_BYTES = 512  # of tar; an archive ends with two blocks of zeros


@dataclass(frozen=True)
class Staged:
    """Copy of a node: `directory` is empty if there is none; `words` say why, or what was done."""

    directory: str
    words: str


def main(arguments: list[str]) -> int:
    """Print the node's copy of an archive; 1 without a copy."""
    archive, pack = map(Path, arguments)
    began_s = time.time()
    packages = Path(sysconfig.get_path("purelib"))
    staged = stage(archive, packages, Path(scratch_parent()))
    record = {"host": host(), "directory": staged.directory, "words": staged.words}
    with contextlib.suppress(OSError):  # a full disk; the words are in the job's output, too
        write_json(pack / f"stage-{host()}.json", record | {"took_s": time.time() - began_s})
    print(f"{host()}: {staged.words}", file=sys.stderr)
    if not staged.directory:
        return 1
    print(staged.directory)
    return 0


def stage(archive: Path, packages: Path, scratch: Path) -> Staged:
    """Unpack an archive of `packages` below `scratch`, unless it is there already."""
    try:
        status = archive.stat()
        if status.st_mtime < packages.stat().st_mtime:
            return Staged("", f"{archive} is older than {packages}, which is used")
        if not _is_whole(archive):
            return Staged("", f"{archive} is not whole; {packages} is used")
        stamp = f"{archive.resolve()} {status.st_size} {status.st_mtime_ns}"
        name = f"packages-{os.getuid()}-{hashlib.sha256(stamp.encode()).hexdigest()[:12]}"
        with _locked(scratch / f"{name}.lock"):
            if (scratch / name).is_dir():
                return Staged(str(scratch / name), f"{archive} is in {scratch / name}")
            return _unpack(archive, scratch / name, packages)
    except OSError as error:
        return Staged("", f"{archive} is not unpacked ({error}); {packages} is used")


def _is_whole(archive: Path) -> bool:
    """True if a tar archive has its end: tar itself does not check it, gzip and others do."""
    with archive.open("rb") as file:
        if file.read(262)[257:] != b"ustar":
            return True
        file.seek(-2 * BLOCK_BYTES, os.SEEK_END)
        return not any(file.read())


def _unpack(archive: Path, place: Path, packages: Path) -> Staged:
    partial = place.with_name(f"{place.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a job that was killed
    partial.mkdir()
    command = ["tar", "--extract", "--file", str(archive), "--directory", str(partial)]
    done = run(command)
    if done.returncode:
        shutil.rmtree(partial, ignore_errors=True)
        said = done.stderr.strip().splitlines() or [f"tar ended with {done.returncode}"]
        return Staged("", f"{archive} is not unpacked ({said[0]}); {packages} is used")
    partial.rename(place)
    return Staged(str(place), f"{archive} was unpacked in {place}")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # another pack's job may unpack it at this moment
        yield


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Finds NVIDIA Nsight Systems, checks that it records NVTX ranges, and chooses it for a run."""

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvscope.base.errors import BadInput
from kvscope.base.processes import end_with_parent, kill, version_of
from kvscope.base.ranges import DOMAIN
from kvscope.base.reading import last_line

NAMED_BY = "KVSCOPE_NSYS"
PRIVATE = Path(".nsys/bin/nsys")  # where `make nsys` puts it, relative to the checkout
CHECKOUT = Path(__file__).parents[3]

# Both are needed: with either kind of perf event, some releases of nsys hang forever.
NO_PERF_EVENTS = ("--sample=none", "--cpuctxsw=none")

VERSION = r"NVIDIA Nsight Systems version \d[\w.-]*"
ANSWER_LIMIT_S = 30.0
PROBE_LIMIT_S = 60.0
PROBE_RANGES = 3
PROBE = f"""
import nvtx
for number in range({PROBE_RANGES}):
    with nvtx.annotate("probe", domain="{DOMAIN}"):
        pass
"""


@dataclass(frozen=True)
class Nsys:
    """An nsys that runs here: its path, absolute, and its version, such as 2023.4.4.54-…."""

    path: Path
    version: str


def find_nsys() -> Nsys | None:
    """The nsys to use: $KVSCOPE_NSYS, else the nsys of the checkout, else that on PATH.

    Raises BadInput if $KVSCOPE_NSYS names something that is not a working nsys.
    """
    named = os.environ.get(NAMED_BY)
    if named:
        version = _version(Path(named))
        if version is None:
            raise BadInput(f"{NAMED_BY}: '{named}' is not an nsys that runs here; correct or unset")
        return Nsys(Path(named).absolute(), version)
    for path in _usual_places():
        version = _version(path)
        if version is not None:
            return Nsys(path.absolute(), version)
    return None


def _usual_places() -> Iterator[Path]:
    yield CHECKOUT / PRIVATE
    yield Path.cwd() / PRIVATE
    on_path = shutil.which("nsys")
    if on_path:
        yield Path(on_path)


def _version(path: Path) -> str | None:
    """Answer of the nsys at `path` to --version; None if it does not run."""
    if not os.access(path, os.X_OK) or path.is_dir():
        return None
    line, _ = version_of([path, "--version"], VERSION, ANSWER_LIMIT_S)
    return line.rpartition(" ")[2] or None


@dataclass(frozen=True)
class Profiling:
    """The profiler of a run: what was requested, what is used, and why they differ."""

    requested: str
    nsys: Nsys | None
    reason: str | None = None

    def facts(self) -> dict[str, Any]:
        """The entry of run.json."""
        return {
            "requested": self.requested,
            "used": "nsys" if self.nsys else "none",
            "reason": self.reason,
            "version": self.nsys.version if self.nsys else None,
        }


def choose_profiler(requested: str) -> Profiling:
    """Select nsys if it is requested or allowed ('auto') and it is installed.

    BadInput if it is requested and not installed.
    """
    if requested == "none":
        return Profiling(requested, None)
    nsys = find_nsys()
    if nsys is None and requested == "nsys":
        raise BadInput(
            "profiler: 'nsys' is requested but Nsight Systems is not installed; run `make nsys`, "
            "set KVSCOPE_NSYS to its path, or use profiler=auto or profiler=none"
        )
    return Profiling(requested, nsys, None if nsys else "Nsight Systems is not installed")


def verify_capture(nsys: Nsys) -> str | None:
    """Profile a tiny program with NVTX ranges; returns the problem in one sentence, or None.

    This takes about a second. nsys may exit with 0 and write no report, or a report without ranges,
    so the ranges in the export are counted. A failure is tried once more.
    """
    return _probe(nsys) and _probe(nsys)


def _probe(nsys: Nsys) -> str | None:
    with tempfile.TemporaryDirectory(prefix="kvscope-") as name:
        directory = Path(name)
        report, sqlite = directory / "probe.nsys-rep", directory / "probe.sqlite"
        profile = ["profile", "--trace=nvtx", *NO_PERF_EVENTS, f"--output={report}"]
        for step, product in (
            ([*profile, sys.executable, "-c", PROBE], report),
            (["export", "--type=sqlite", f"--output={sqlite}", str(report)], sqlite),
        ):
            words = _run([str(nsys.path), *step], directory)
            if words is None:
                return f"nsys {step[0]} did not end within {PROBE_LIMIT_S:.0f} s and was killed"
            if not product.exists():
                last = last_line(words) or "no word"
                return f"nsys {step[0]} left no {product.suffix[1:]} file: {last}"
        ranges = _count_ranges(sqlite)
    if ranges != PROBE_RANGES:
        return f"nsys recorded {ranges} of {PROBE_RANGES} NVTX ranges"
    return None


def _run(command: list[str], directory: Path) -> str | None:
    """Run a command with `directory` for all files; returns its output, or None if it hung."""
    process = subprocess.Popen(
        command,
        cwd=directory,
        # nsys keeps files of a fixed name in TMPDIR, which belong to the first user.
        env=os.environ | {"TMPDIR": str(directory)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=end_with_parent(),
    )
    try:
        words, _ = process.communicate(timeout=PROBE_LIMIT_S)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            kill(process)
    return str(words)


def _count_ranges(sqlite: Path) -> int:
    """Push/pop ranges of the probe in an nsys export; a table without rows is not exported."""
    with closing(sqlite3.connect(sqlite)) as connection:
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
        if not {"NVTX_EVENTS", "StringIds"} <= tables:
            return 0
        rows = connection.execute(
            "SELECT COUNT(*) FROM NVTX_EVENTS LEFT JOIN StringIds ON textId = StringIds.id"
            " WHERE eventType = 59 AND COALESCE(text, value) = 'probe'"
        )
        count: int = rows.fetchone()[0]
    return count

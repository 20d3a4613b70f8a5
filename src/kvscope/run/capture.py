"""Profiling a run with Nsight Systems: the command, and the export of its report.

nsys records the environment of every process that it can see, not only of the one it profiles. It
therefore runs in a separate process namespace, which needs no privileges. If the system allows
none, the report is deleted, and strings that hold environments are blanked in the export.
"""

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path

import psutil

from kvscope.base import processes
from kvscope.base.errors import KvscopeError
from kvscope.base.files import TEMPORARY
from kvscope.base.reading import last_line
from kvscope.run.profiler import NO_PERF_EVENTS, Nsys
from kvscope.tables.runfile import NSYS_EXPORT, NSYS_REPORT

EXPORT_LIMIT_S = 900.0
CAPTURE_LIMIT_S = 120.0
REPORT, STREAM = ".nsys-rep", ".qdstrm"
ENTER = ("nsenter", "--user", "--pid", "--mount", "--preserve-credentials")
ANSWER_LIMIT_S = 30.0
ENVIRONMENTS = {
    "StringIds": "instr(CAST(value AS BLOB), x'00') > 0",
    "TARGET_INFO_SYSTEM_ENV": "name = 'DeviceEnvironment'",
    "META_DATA_CAPTURE": "name LIKE '%:ENVIRONMENT_VARIABLE%' OR name LIKE '%:ARGUMENT_%'",
}
"""Which rows of an export's tables hold environments and words of commands, in `value`."""


@cache
def private_namespace() -> tuple[str, ...]:
    """The command prefix that hides all other processes; empty if the system allows none."""
    unshare = shutil.which("unshare")
    if unshare is None or shutil.which("nsenter") is None:
        return ()
    options = ("--user", "--map-current-user", "--pid", "--fork", "--kill-child", "--mount-proc")
    prefix = (unshare, *options, "--")
    tried = processes.run([*prefix, "true"], capture_output=True, timeout=ANSWER_LIMIT_S)
    return prefix if tried.returncode == 0 else ()


def profile_command(
    nsys: Nsys, traced: Sequence[str], trace: Path, command: list[str]
) -> list[str]:
    """The command that runs `command` under nsys and writes `trace`.nsys-rep.

    `traced` are the options that say what is traced (`Platform.profiler_options`).
    """
    options = [*traced, *NO_PERF_EVENTS, "--force-overwrite=true", f"--output={trace}"]
    return [*private_namespace(), str(nsys.path), "profile", *options, *command]


class CaptureSession:
    """A session of nsys around one process and its forks, which captures only within `capture`.

    `traced` are the options that say what is traced, `environment` is that of nsys.
    """

    def __init__(self, nsys: Nsys, traced: Sequence[str], environment: Mapping[str, str]) -> None:
        self._nsys, self._environment = str(nsys.path), dict(environment)
        self._name = f"kvscope-{os.getpid()}"
        self._traced = traced

    @property
    def prefix(self) -> list[str]:
        """First words of the process's command."""
        options = [f"--session-new={self._name}", *self._traced, "--trace-fork-before-exec=true"]
        return [*private_namespace(), self._nsys, "launch", *options]

    @contextmanager
    def capture(self, pid: int, trace: Path) -> Iterator[None]:
        """Capture into `trace`.nsys-rep what the process and its forks do in a `with` block.

        `pid` is that of the command with the prefix. KvscopeError if nsys does not.
        """
        unfinished = trace.absolute().with_name(f"unfinished-{trace.name}")
        output = ["--force-overwrite=true", f"--output={unfinished}"]
        self._tell(pid, "start", *NO_PERF_EVENTS, *output)
        try:
            yield
        finally:
            self._tell(pid, "stop")
        for suffix in (STREAM, REPORT):  # whole now, as one of a killed process may not be
            if unfinished.with_suffix(suffix).exists():
                unfinished.with_suffix(suffix).replace(trace.with_suffix(suffix))

    def _tell(self, pid: int, word: str, *options: str) -> None:
        command = [self._nsys, word, f"--session={self._name}", *options]
        if private_namespace():
            inside = psutil.Process(pid).children()[0].pid
            command = [*ENTER, f"--target={inside}", *command]
        try:
            done = processes.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                env=self._environment,
                timeout=CAPTURE_LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            limit = f"{CAPTURE_LIMIT_S:.0f} s"
            raise KvscopeError(f"nsys {word} did not end within {limit}") from None
        if done.returncode != 0:
            raise KvscopeError(f"nsys {word} failed: {last_line(done.stderr or done.stdout)}")


def export(
    nsys: Nsys, directory: Path, environment: Mapping[str, str], secret: bool = False
) -> str | None:
    """Export the run's report to SQLite; returns the problem in one sentence, or None.

    If nsys saw processes whose environment may be `secret`, as without a namespace, environments
    are blanked in the export, and the report is deleted, with the stream that it was made of, which
    nsys may leave behind.

    nsys may exit with 0 and write no file, so only the existence of the files counts. The export
    records its environment as well, so it gets that of the measured process (`run.environment`).
    """
    secret |= not private_namespace()
    report, sqlite = directory / NSYS_REPORT, directory / NSYS_EXPORT
    if not report.exists():
        return "nsys left no report"
    command = [str(nsys.path), "export", "--type=sqlite", "--force-overwrite=true"]
    unfinished = directory / f".{NSYS_EXPORT}.export{TEMPORARY}"  # whole when it is renamed
    try:
        done = processes.run(
            [*command, f"--output={unfinished}", str(report)],
            capture_output=True,
            text=True,
            errors="replace",
            env=environment,
            timeout=EXPORT_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return f"nsys export did not finish within {EXPORT_LIMIT_S:.0f} s"
    if not unfinished.exists():
        return f"nsys export left no SQLite file ({last_line(done.stderr or done.stdout)})"
    if secret:
        remove_environments(unfinished)
    unfinished.replace(sqlite)
    if secret:
        report.unlink()
        report.with_suffix(STREAM).unlink(missing_ok=True)
    return None


def remove_environments(sqlite: Path) -> None:
    """Blank every string of an export that holds a process's environment, or a command's words.

    Of the strings of events, an environment is the only one with NUL between its parts. The file is
    rewritten, so that nothing is left in its free pages.
    """
    with closing(sqlite3.connect(sqlite)) as connection:
        connection.execute("PRAGMA secure_delete = ON")
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        for table, which in ENVIRONMENTS.items():
            if table in tables:
                connection.execute(f"UPDATE {table} SET value = '' WHERE {which}")
        connection.commit()
        connection.execute("VACUUM")

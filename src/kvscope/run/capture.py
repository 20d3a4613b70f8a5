"""Profiling a run with Nsight Systems: the command, and the export of its report.

nsys records the environment of every process that it can see, not only of the one it profiles. It
therefore runs in a separate process namespace, which needs no privileges. If the system allows
none, the report is deleted, and strings that hold environments are blanked in the export.
"""

import shutil
import sqlite3
import subprocess
from collections.abc import Sequence
from contextlib import closing
from functools import cache
from pathlib import Path

from kvscope.run.profiler import NO_PERF_EVENTS, Nsys
from kvscope.runfile import NSYS_EXPORT, NSYS_REPORT

EXPORT_LIMIT_S = 900.0
ANSWER_LIMIT_S = 30.0


@cache
def private_namespace() -> tuple[str, ...]:
    """The command prefix that hides all other processes; empty if the system allows none."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return ()
    options = ("--user", "--map-current-user", "--pid", "--fork", "--kill-child", "--mount-proc")
    prefix = (unshare, *options, "--")
    tried = subprocess.run([*prefix, "true"], capture_output=True, timeout=ANSWER_LIMIT_S)
    return prefix if tried.returncode == 0 else ()


def profile_command(
    nsys: Nsys, traced: Sequence[str], trace: Path, command: list[str]
) -> list[str]:
    """The command that runs `command` under nsys and writes `trace`.nsys-rep.

    `traced` are the options that say what is traced (`Platform.profiler_options`).
    """
    options = [*traced, *NO_PERF_EVENTS, "--force-overwrite=true", f"--output={trace}"]
    return [*private_namespace(), str(nsys.path), "profile", *options, *command]


def export(nsys: Nsys, directory: Path, environment: dict[str, str]) -> str | None:
    """Export the run's report to SQLite; returns the problem in one sentence, or None.

    nsys may exit with 0 and write no file, so only the existence of the files counts. The export
    records its environment as well, so it gets that of the measured process (`run.environment`).
    """
    report, sqlite = directory / NSYS_REPORT, directory / NSYS_EXPORT
    if not report.exists():
        return "nsys left no report"
    command = [str(nsys.path), "export", "--type=sqlite", "--force-overwrite=true"]
    try:
        done = subprocess.run(
            [*command, f"--output={sqlite}", str(report)],
            capture_output=True,
            text=True,
            env=environment,
            timeout=EXPORT_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return f"nsys export did not finish within {EXPORT_LIMIT_S:.0f} s"
    if not sqlite.exists():
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        return f"nsys export left no SQLite file ({' '.join(last)})"
    if not private_namespace():
        report.unlink()
        remove_environments(sqlite)
    return None


def remove_environments(sqlite: Path) -> None:
    """Blank every string of an export that holds a process's environment.

    An environment is the only string with NUL between its parts. The file is rewritten, so that
    nothing is left in its free pages.
    """
    with closing(sqlite3.connect(sqlite)) as connection:
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute(
            "UPDATE StringIds SET value = '' WHERE instr(CAST(value AS BLOB), x'00') > 0"
        )
        connection.commit()
        connection.execute("VACUUM")

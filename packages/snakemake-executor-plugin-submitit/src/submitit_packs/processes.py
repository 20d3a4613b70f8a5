"""Linux's families of processes: nothing that is started here outlives what started it.

`python -m submitit_packs.processes COMMAND…` becomes a command that is killed with its parent.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(number: signal.Signals) -> None:
    """Be sent a signal when the thread that started this process ends; it survives `exec`."""
    _libc.prctl(_PR_SET_PDEATHSIG, number)


def run(command: Sequence[str], **options: Any) -> "subprocess.CompletedProcess[str]":
    """`subprocess.run` of a program that answers in text and is killed with this process."""
    parent = os.getpid()

    def tie() -> None:
        die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:  # it died before the call
            os._exit(1)

    answer: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.run(command, preexec_fn=tie, errors="replace", **{**answer, **options})


def adopt_orphans() -> None:
    """Become the parent of descendants whose parents end, in place of the machine's init."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def kill_descendants(patience_s: float = float("inf")) -> None:
    """Kill and reap all descendants; an adopter's descendants alone are complete."""
    until = time.monotonic() + patience_s
    with contextlib.suppress(ChildProcessError):  # until there is no child left
        while time.monotonic() < until:
            for pid in _children():  # those that lost their parents became ours
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.01)


def _children() -> list[int]:
    """The children of all threads of this process."""
    children: list[int] = []
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread ended
            children += map(int, path.read_text().split())
    return children


if __name__ == "__main__":
    die_with_parent(signal.SIGKILL)
    os.execvp(sys.argv[1], sys.argv[1:])

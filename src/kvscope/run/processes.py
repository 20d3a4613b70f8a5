"""Ending a process together with its children, and together with its parent."""

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psutil

PR_SET_PDEATHSIG = 1


def end_with_parent() -> Callable[[], None]:
    """Return a `preexec_fn` with which a child is killed when this process dies.

    Otherwise a measured process could outlive a supervisor that was killed with SIGKILL, and
    disturb the next measurement. It affects the child only: `unshare --kill-child` extends it to
    the processes of its namespace, and under an nsys without a namespace the measured process
    checks for its supervisor itself (`Progress`).
    """
    libc = ctypes.CDLL(None, use_errno=True)  # loaded here: a forked child must not import
    parent = os.getpid()

    def call() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the call
            os._exit(1)

    return call


def kill(process: "subprocess.Popen[Any]") -> None:
    """Kill a process that leads its process group, the group, and children that left it.

    The agents of nsys leave the group. Returns when the process has ended.
    """
    family: list[psutil.Process] = []
    with suppress(psutil.Error, OSError):  # it ended, or /proc hides processes: its group remains
        family = psutil.Process(process.pid).children(recursive=True)
    with suppress(ProcessLookupError):  # it ended meanwhile, which is what is wanted
        os.killpg(process.pid, signal.SIGKILL)
    for child in family:
        with suppress(psutil.Error):  # likewise
            child.kill()
    process.wait()

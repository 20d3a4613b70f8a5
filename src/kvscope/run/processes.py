"""Ending a process together with all that it started, and with what started it."""

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
    """What a child calls before it starts its program, to be killed when this process dies.

    So no measured process outlives a supervisor that was killed with SIGKILL, to run beside the
    next measurement. It holds for the child itself. `unshare --kill-child` passes it on to all that
    runs in its namespace; below an nsys without a namespace, the measured process looks for
    itself (`Progress`).
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
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    with suppress(ProcessLookupError):  # it ended meanwhile, which is what is wanted
        os.killpg(process.pid, signal.SIGKILL)
    for child in family:
        with suppress(psutil.NoSuchProcess):  # likewise
            child.kill()
    process.wait()

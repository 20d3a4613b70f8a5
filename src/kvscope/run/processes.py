"""Ending a process together with all that it started."""

import os
import signal
import subprocess
from contextlib import suppress
from typing import Any

import psutil


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

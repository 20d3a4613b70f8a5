"""Programs that the steps start, and end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from smoke.place import ROOT

END_S = 4.0  # for a program to end by itself at its limit


def python(words: list[str], log: Path, seconds: float, directory: Path = ROOT) -> int | None:
    """The exit status of a Python program; None if it was ended after so many seconds."""
    command = [sys.executable, *words]
    with log.open("w", encoding="utf-8") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, cwd=directory, start_new_session=True
        )
        try:
            return process.wait(max(seconds, 1))
        except subprocess.TimeoutExpired:
            return None
        finally:
            end(process)


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a program that has not ended, first politely."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

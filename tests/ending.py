"""Ends a process in each way that there is, and looks for what it leaves behind."""

import fcntl
import os
import pty
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

LIMIT_S, KILL_LIMIT_S = 5.0, 10.0
START_LIMIT_S = 120.0
TERMINAL = "terminal closed"
ENDS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL, TERMINAL]


@dataclass
class Parent:
    """A process, and the other end of its terminal, if it has a terminal."""

    process: "subprocess.Popen[bytes]"
    terminal: int | None

    def end(self, way: "signal.Signals | str") -> None:
        if isinstance(way, str):
            self.close()
        else:
            self.process.send_signal(way)

    def close(self) -> None:
        """Close the terminal."""
        if self.terminal is not None:
            os.close(self.terminal)
        self.terminal = None


def start(
    command: Sequence[str],
    place: Path,
    variables: Mapping[str, str] | None = None,
    in_terminal: bool = False,
) -> Parent:
    """Start a command as a service does or a shell in a terminal; it writes to a file `said`.

    In a terminal whatever ends it, the kernel sends SIGHUP to all that it started, also where
    nothing else would end them.
    """
    ours, theirs = pty.openpty()

    def take_terminal() -> None:
        for number in (signal.SIGHUP, signal.SIGINT):  # ignored if pytest runs under nohup
            signal.signal(number, signal.SIG_DFL)
        if in_terminal:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    with (place / "said").open("wb") as said:
        process = subprocess.Popen(
            command,
            stdin=theirs if in_terminal else subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env=os.environ | dict(variables or {}),
            start_new_session=True,
            preexec_fn=take_terminal,
        )
    os.close(theirs)
    if not in_terminal:
        os.close(ours)
    return Parent(process, ours if in_terminal else None)


def family_of(parent: Parent, place: Path) -> set[psutil.Process]:
    """A process's descendants, and whatever has a file open below a directory."""
    this = psutil.Process(parent.process.pid)
    return ({*this.children(recursive=True)} | users_of(place)) - {this}


def users_of(place: Path) -> set[psutil.Process]:
    """The processes that have a file open below a directory."""
    results = set()
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            links = [os.readlink(one) for one in Path(f"/proc/{process.pid}/fd").iterdir()]
            if any(link.startswith(f"{place}/") for link in links):
                results.add(process)
    return results


def assert_all_end(
    command: Sequence[str],
    works: Callable[[set[psutil.Process]], bool],
    way: "signal.Signals | str",
    place: Path,
    variables: Mapping[str, str] | None = None,
) -> None:
    """Start a command, end it once its children work, and see that all end within the limit."""
    parent = start(command, place, variables, in_terminal=way == TERMINAL)
    family: set[psutil.Process] = set()
    try:
        until = time.monotonic() + START_LIMIT_S
        while not works(family := family_of(parent, place)):
            output = (place / "said").read_text(errors="replace")
            assert parent.process.poll() is None, output
            assert time.monotonic() < until, output
            time.sleep(0.05)
        parent.end(way)
        until = time.monotonic() + (KILL_LIMIT_S if way == signal.SIGKILL else LIMIT_S)
        known = [*family, psutil.Process(parent.process.pid)]
        _, alive = psutil.wait_procs(known, until - time.monotonic())
        assert not alive, described(alive)
        # Processes that were started after the family was listed have the same limit.
        while later := users_of(place):
            assert time.monotonic() < until, described(later)
            time.sleep(0.05)
    finally:
        for process in family:
            with suppress(psutil.Error):
                process.kill()
        parent.process.kill()
        parent.process.wait()
        parent.close()


def described(processes: Iterable[psutil.Process]) -> list[str]:
    """Number, parent, status and command of each process that has not ended meanwhile."""
    lines = []
    for process in processes:
        with suppress(psutil.Error):
            parent, status = process.ppid(), process.status()
            lines.append(f"{process.pid} of {parent}, {status}: {' '.join(process.cmdline())}")
    return lines


def names(part: str, at_least: int = 1) -> Callable[[set[psutil.Process]], bool]:
    """Whether there are so many processes whose command has these words in a row."""
    words = part.split()

    def is_named(command: Sequence[str]) -> bool:
        result = [os.path.basename(word) for word in command]
        return any(result[i : i + len(words)] == words for i in range(len(result)))

    def works(family: set[psutil.Process]) -> bool:
        result = 0
        for process in family:
            with suppress(psutil.Error):
                result += is_named(process.cmdline())
        return result >= at_least

    return works

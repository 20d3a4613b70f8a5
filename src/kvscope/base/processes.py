"""Processes that are started: none outlives this one, however this one ends.

A child is killed by the kernel when this process dies. Where this one ends by itself it kills what
it started. Only the standard library is imported here, for the doctor.
"""

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

    import psutil

PR_SET_PDEATHSIG = 1
PATIENCE_S = 2.0  # seconds from SIGTERM to SIGKILL
ENDING = (signal.SIGTERM, signal.SIGHUP)  # SIGINT is an exception anyway


def end_with_parent() -> Callable[[], None]:
    """Return a `preexec_fn` with which a child is killed when the thread that starts it ends.

    Otherwise a measured process could outlive a supervisor that was killed with SIGKILL, and
    disturb the next measurement. It affects the child only: `unshare --kill-child` extends it to
    the processes of its namespace, and a measured process below nsys without a namespace watches
    its supervisor's lock (`run.locks.end_with_holder`).
    """
    libc = ctypes.CDLL(None, use_errno=True)  # loaded here: a forked child must not import
    parent = os.getpid()

    def call() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the call
            os._exit(1)

    return call


def run(command: Sequence[Any], **options: Any) -> "subprocess.CompletedProcess[Any]":
    """`subprocess.run` of a command that ends with this process."""
    return subprocess.run(command, preexec_fn=end_with_parent(), **options)


@contextmanager
def running(command: Sequence[Any], **options: Any) -> "Iterator[subprocess.Popen[Any]]":
    """A command that runs beside a `with` block and ends with this process.

    After the block it is waited for; it is killed if the block raises.
    """
    with subprocess.Popen(command, preexec_fn=end_with_parent(), **options) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


@contextmanager
def running_whole(command: Sequence[Any], **options: Any) -> "Iterator[subprocess.Popen[Any]]":
    """A command that runs beside a `with` block, and all that it starts.

    They get SIGTERM, and SIGKILL after `PATIENCE_S`, if the block raises or this process is killed:
    then from a process that has nothing else to do.
    """
    with subprocess.Popen(command, **options) as process:
        guard = subprocess.Popen(
            [sys.executable, "-P", "-m", "kvscope.base.processes", str(process.pid)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            yield process
        except BaseException:
            end_family(process.pid)
            raise
        finally:
            guard.kill()
            guard.communicate()


def end_family(pid: int) -> None:
    """End a process and its descendants: TERM, so that they save their state, then KILL."""
    import psutil  # not above: the doctor needs the standard library only

    with suppress(psutil.Error):  # it has ended
        first = psutil.Process(pid)
        family = {first, *first.children(recursive=True)}
        for process in family:
            with suppress(psutil.Error):
                process.terminate()
        psutil.wait_procs(family, PATIENCE_S)
        _kill_all(family)


def _kill_all(family: "Iterable[psutil.Process]") -> None:
    """Kill processes and their descendants: all are stopped first, so that none starts another."""
    import psutil  # not above: the doctor needs the standard library only

    stopped: set[psutil.Process] = set()
    pending = [*family]
    while pending:
        process = pending.pop()
        stopped.add(process)
        with suppress(psutil.Error):  # it has ended
            process.suspend()
            pending += set(process.children()) - stopped
    for process in stopped:
        with suppress(psutil.Error):  # likewise
            process.kill()


@contextmanager
def forks(count: int) -> "Iterator[ProcessPoolExecutor]":
    """A pool of so many forks that end with this process; killed if the `with` block raises."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    context, tie = multiprocessing.get_context("fork"), end_with_parent()

    def begin() -> None:
        for number in (*ENDING, signal.SIGINT):  # a fork would catch its parent's exception
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        tie()

    with ProcessPoolExecutor(count, context, begin) as pool, no_child_left():
        with signals_later():
            pool.submit(int)  # makes all forks
        yield pool


@contextmanager
def signals_later() -> Iterator[None]:
    """Let signals wait until the `with` block ends.

    Python drops what is raised as it forks; and what is raised as futures are locked leaves them
    locked, so that the end of their pool waits for ever.
    """
    if not _in_main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in (*ENDING, signal.SIGINT)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for missed in came:
            signal.raise_signal(missed)


@contextmanager
def no_child_left() -> Iterator[None]:
    """Kill a `with` block's processes and their descendants if the block raises.

    Threads that wait for it go on then.
    """
    import psutil  # not above: the doctor needs the standard library only

    this = psutil.Process()
    before = set(this.children())
    try:
        yield
    except BaseException:
        _kill_all(set(this.children()) - before)
        raise


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Raise SystemExit on SIGTERM and SIGHUP, so that cleanup runs.

    A signal that is ignored, as SIGHUP is under nohup, stays so.
    """

    def stop(number: int, _frame: Any) -> None:
        raise SystemExit(128 + number)

    if not _in_main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in ENDING}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGINT, also where a library makes an error of its own of it.

    pydantic does, for one, in a serializer.
    """
    came = False

    def interrupt(_number: int, _frame: Any) -> None:
        nonlocal came
        came = True
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or not _in_main_thread():
        yield
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except Exception:
        if came:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, before)


def _in_main_thread() -> bool:
    """Whether this is the thread that alone has signals."""
    return threading.current_thread() is threading.main_thread()


def kill(process: "subprocess.Popen[Any]") -> None:
    """Kill a process that leads its process group, the group, and children that left it.

    The agents of nsys leave the group. Returns when the process has ended.
    """
    import psutil  # not above: the doctor needs the standard library only

    family: list[psutil.Process] = []
    with suppress(psutil.Error, OSError):  # it ended, or /proc hides processes: its group remains
        family = psutil.Process(process.pid).children(recursive=True)
    with suppress(ProcessLookupError):  # it has ended meanwhile
        os.killpg(process.pid, signal.SIGKILL)
    for child in family:
        with suppress(psutil.Error):  # likewise
            child.kill()
    process.wait()


def version_of(
    command: Sequence[Any], shape: str, limit_s: float, codes: Sequence[int] = (0,)
) -> tuple[str, str]:
    """The line of a program's answer that is its version, and the reason if it has none.

    `shape` is a regular expression of the whole line, wherever the program prints it, and `codes`
    are the exit codes with which it does: an error message is no version.
    """
    name = os.path.basename(command[0])
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True}
    try:
        done = run(command, text=True, errors="replace", timeout=limit_s, **options)
    except subprocess.TimeoutExpired:
        return "", f"{name} does not answer within {limit_s:.0f} s"
    except OSError as error:
        return "", f"{name} does not start: {os.strerror(error.errno or 0)}"
    if done.returncode not in codes:
        return "", f"{name} fails with exit code {done.returncode}"
    for line in map(str.strip, (*done.stdout.splitlines(), *done.stderr.splitlines())):
        if re.fullmatch(shape, line):
            return line, ""
    return "", f"{name} does not tell it"


def main(pid: int) -> None:
    """End a process and its descendants when standard input ends, as it does if the parent dies."""
    sys.stdin.read()
    end_family(pid)


if __name__ == "__main__":
    main(int(sys.argv[1]))

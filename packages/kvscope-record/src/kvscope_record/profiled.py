"""A recorded server under Nsight Systems: its command, its end, and the export of the report.

nsys stores the environment of every process it sees, and a server's may hold secrets. The report is
therefore deleted once it is exported, and environments are blanked in the export.
"""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from kvscope.api.files import files
from kvscope.api.machine import processes
from kvscope.api.profiling import capture, profiler
from kvscope.api.tables import runfile

GPU_DRIVER = Path("/proc/driver/nvidia/version")
TRACED, TRACED_GPU = ("--trace=nvtx",), ("--trace=cuda,nvtx", "--cuda-graph-trace=node")
_BEFORE = 'umask "$1"; shift; echo $$ > "$0"; exec "$@"'
_PROCESS_ID = "server.pid"
SECONDS_BETWEEN_LOOKS = 0.2


def serve(
    nsys: profiler.Nsys, words: Sequence[str], environment: Mapping[str, str], directory: Path
) -> tuple[int, str | None]:
    """Run a command under nsys until it ends, and export what nsys saw into `directory`.

    Signals reach the command alone: nsys writes its report when that has ended. If this process is
    killed, both end. Returns the exit code, and in one sentence why there is no export, or None.
    """
    for name in (runfile.NSYS_REPORT, runfile.NSYS_EXPORT):  # of an earlier server
        (directory / name).unlink(missing_ok=True)
    place = directory / _PROCESS_ID
    traced = TRACED_GPU if GPU_DRIVER.exists() else TRACED
    report = (directory / runfile.NSYS_REPORT).with_suffix("").absolute()
    options = [*traced, *profiler.NO_PERF_EVENTS, "--force-overwrite=true", f"--output={report}"]
    mask = f"{files.umask():04o}"  # nsys has none
    named = ["/bin/sh", "-c", _BEFORE, str(place.absolute()), mask]
    command = [str(nsys.path), "profile", *options, *named, *words]
    whole = processes.running_whole(command, env=environment, start_new_session=True)
    with _noted() as came, whole as main:
        code = _wait(main, came, place)
    place.unlink(missing_ok=True)
    return code, capture.export(nsys, directory, environment, secret=True)


def _wait(process: "subprocess.Popen[bytes]", came: list[int], place: Path) -> int:
    """Wait for a process; signals that come go to the one whose id is in a file."""
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(SECONDS_BETWEEN_LOOKS)
        if came and place.exists() and (pid := place.read_text().strip()):
            with suppress(ProcessLookupError):  # it has ended, and nsys has not
                os.kill(int(pid), came.pop(0))


@contextmanager
def _noted() -> Iterator[list[int]]:
    """The signals that came and would have ended this process, while it lasts."""
    came: list[int] = []
    signals = (signal.SIGINT, *processes.ENDING)
    ending = [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]
    before = {
        ending_signal: signal.signal(ending_signal, lambda number, _: came.append(number))
        for ending_signal in ending
    }
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

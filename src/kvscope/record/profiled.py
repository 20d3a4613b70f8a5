"""A recorded server under Nsight Systems: its command, its end, and the export of the report.

nsys stores the environment of every process it sees, and a server's may hold secrets. The report is
therefore deleted once it is exported, and environments are blanked in the export.
"""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from kvscope.files import umask
from kvscope.run.capture import export
from kvscope.run.profiler import NO_PERF_EVENTS, Nsys
from kvscope.runfile import NSYS_EXPORT, NSYS_REPORT

GPU_DRIVER = Path("/proc/driver/nvidia/version")
TRACED, TRACED_GPU = ("--trace=nvtx",), ("--trace=cuda,nvtx", "--cuda-graph-trace=node")
_BEFORE = 'umask "$1"; shift; echo $$ > "$0"; exec "$@"'
_PROCESS_ID = "server.pid"


def serve(
    nsys: Nsys, words: Sequence[str], environment: Mapping[str, str], directory: Path
) -> tuple[int, str | None]:
    """Run a command under nsys until it ends, and export what nsys saw into `directory`.

    SIGINT and SIGTERM reach the command alone: nsys writes its report when that has ended. Returns
    the exit code, and in one sentence why there is no export, or None.
    """
    for name in (NSYS_REPORT, NSYS_EXPORT):  # of an earlier server
        (directory / name).unlink(missing_ok=True)
    place = directory / _PROCESS_ID
    traced = TRACED_GPU if GPU_DRIVER.exists() else TRACED
    report = (directory / NSYS_REPORT).with_suffix("").absolute()
    options = [*traced, *NO_PERF_EVENTS, "--force-overwrite=true", f"--output={report}"]
    named = ["/bin/sh", "-c", _BEFORE, str(place.absolute()), f"{umask():04o}"]  # nsys has none
    command = [str(nsys.path), "profile", *options, *named, *words]
    with _forwarded(place):
        process = subprocess.Popen(command, env=environment, start_new_session=True)
        code = process.wait()
    place.unlink(missing_ok=True)
    return code, export(nsys, directory, environment, secret=True)


@contextmanager
def _forwarded(place: Path) -> Iterator[None]:
    """While it lasts, SIGINT and SIGTERM go to the process whose id is in a file."""

    def forward(number: int, _: FrameType | None) -> None:
        if place.exists():
            os.kill(int(place.read_text()), number)

    before = {one: signal.signal(one, forward) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

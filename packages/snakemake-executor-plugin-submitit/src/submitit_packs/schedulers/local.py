"""This machine: a pack is a process. Its id is `PID-START`, which no later process has.

`python -m submitit_packs.schedulers.local FOLDER MINUTES COMMAND` starts one, and prints its PID.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping

import psutil
import submitit

from submitit_packs.directory import PackDirectory
from submitit_packs.errors import BadSettings, SubmissionRefused
from submitit_packs.model import Pack
from submitit_packs.processes import run
from submitit_packs.schedulers.scheduler import (
    Ending,
    JobStatus,
    Phase,
    Scheduler,
    make_folder,
    pilot_command,
)

PILOT = "submitit_packs.pilot"
SECONDS_FOR_NVIDIA_SMI = 30


class Local(Scheduler):
    """submitit's `local` cluster."""

    name = "local"

    def submit(self, pack: Pack, directory: PackDirectory) -> str:
        """Start the pack's process, which outlives this one."""
        if pack.nodes > 1 and pack.launcher != "fork":
            raise BadSettings(f"{pack.id}: this machine is one node, and {pack.nodes} are planned")
        words = [str(make_folder(directory)), str(pack.walltime_s / 60), _command(directory)]
        # submitit leaves the process in its caller's session, with which it would be killed.
        done = subprocess.run(
            [sys.executable, "-m", __name__, *words],
            start_new_session=True,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise SubmissionRefused(done.stderr.strip().rpartition("\n")[2])
        return _id(psutil.Process(int(done.stdout)))

    def script(self, pack: Pack, directory: PackDirectory) -> str:
        """The process's command: there is no script, and the pilot runs the lines of `setup`."""
        return f"{_command(directory)}\n"

    def status(self, jobs: Mapping[str, str]) -> dict[str, JobStatus]:
        """Status of the jobs by their processes."""
        return {pack: self._status(job) for pack, job in jobs.items()}

    def _status(self, job: str) -> JobStatus:
        if _process(job):
            return JobStatus(Phase.RUNNING, nodes=(_hostname(),))
        return JobStatus(Phase.ENDED, Ending.DONE, "its process ended")

    def find(self, packs: Iterable[str]) -> dict[str, str]:
        """The processes that run these packs' pilots."""
        wanted, jobs_by_pack = set(packs), {}
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if PILOT in words and (pack := words[-1].rpartition("/")[2]) in wanted:
                parent = _parent(process)
                is_submitit = parent and "submitit.local._local" in _words(parent)
                jobs_by_pack[pack] = _id(parent if parent and is_submitit else process)
        return jobs_by_pack

    def cancel(self, job_ids: Iterable[str]) -> None:
        """End the processes; they end their members first."""
        for job in job_ids:
            if process := _process(job):
                process.send_signal(signal.SIGTERM)


def gpus() -> int:
    """The GPUs of this machine that nvidia-smi names; 0 where it fails or does not answer."""
    if not shutil.which("nvidia-smi"):
        return 0
    try:
        done = run(["nvidia-smi", "--list-gpus"], timeout=SECONDS_FOR_NVIDIA_SMI)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines())


def _command(directory: PackDirectory) -> str:
    """The command that submitit starts, without a shell."""
    return pilot_command(directory).removeprefix("exec ")


def _id(process: psutil.Process) -> str:
    return f"{process.pid}-{process.create_time():.0f}"


def _process(job: str) -> psutil.Process | None:
    try:
        process = psutil.Process(int(job.partition("-")[0]))
        alive = process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        return process if alive and _id(process) == job else None
    except psutil.NoSuchProcess:
        return None


def _parent(process: psutil.Process) -> psutil.Process | None:
    try:
        return process.parent()
    except psutil.Error:  # it ended, or it is another user's and hidden
        return None


def _words(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def _hostname() -> str:
    import socket

    return socket.gethostname()


def main(place: str, minutes: str, command: str) -> None:
    """Start a job of submitit's that holds none of this process's streams, and print its PID."""
    executor = submitit.LocalExecutor(place)
    executor.update_parameters(timeout_min=float(minutes), signal_delay_s=0, gpus_per_node=0)
    answer, null = os.dup(1), os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    job = executor._submit_command(command)
    os.write(answer, job.job_id.encode())
    os._exit(0)


assert sys.platform == "linux", "process groups, prctl and /proc are Linux's"

if __name__ == "__main__":
    main(*sys.argv[1:])

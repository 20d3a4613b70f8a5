"""A PBS cluster of this machine's processes, as tests hold it."""

import ast
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fake_pbs import sessions
from fake_pbs.command import ask
from fake_pbs.queues import DEFAULT_QUEUE, POLARIS, node_names

TESTS = Path(__file__).parents[1]
COMMANDS = ("qsub", "qstat", "qdel", "qsig", "qrerun", "qselect")
TASKS = {"bin/pbs_tmrsh": "tmrsh", "bin/mpiexec": "no_mpiexec"}
MPI = {"mpi/mpiexec": "mpiexec"}


class FakePBS:
    """A cluster in a directory; a context that starts and ends it.

    Parameters
    ----------
    directory
        for everything of the cluster; a cluster that is there goes on
    nodes
        how many
    queues
        as in `queues.POLARIS`
    tick_s
        between two looks of the scheduler at all jobs
    kill_delay_s
        between TERM and KILL (on Polaris some 20 s)
    node_fail_requeue_s
        between the loss of a job's first node and the job's next run (310 s by default)
    requeue_delay_s
        between the end of a requeued run and the next run
    start_retry_s
        between two attempts to start a job
    time_scale
        seconds here for a second of a job's walltime, so that queues with a shortest walltime
        can be tested
    mpi
        whether nodes have an mpiexec beside PBS's own, which starts nothing
    """

    def __init__(
        self,
        directory: Path,
        nodes: int = 12,
        queues: dict[str, Any] = POLARIS,
        *,
        tick_s: float = 0.05,
        kill_delay_s: float = 2.0,
        node_fail_requeue_s: float = 1.0,
        requeue_delay_s: float = 0.3,
        start_retry_s: float = 0.02,
        time_scale: float = 1.0,
        mpi: bool = True,
    ):
        self.directory = Path(directory).absolute()
        self.nodes = node_names(nodes)
        self.server = "fake-pbs"
        self._process: subprocess.Popen[bytes] | None = None
        for name in ("jobs", "lost", "bin", "mpi"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        config = {
            **{"server": self.server, "queues": queues, "default_queue": DEFAULT_QUEUE},
            **{"nodes": self.nodes, "tick_s": tick_s, "kill_delay_s": kill_delay_s},
            **{"node_fail_requeue_s": node_fail_requeue_s, "requeue_delay_s": requeue_delay_s},
            **{"start_retry_s": start_retry_s, "time_scale": time_scale},
        }
        (self.directory / "config.json").write_text(json.dumps(config))
        for name in COMMANDS:
            self._write_command(
                f"bin/{name}", f"command; command.main({name!r}, {str(self.directory)!r})"
            )
        for name, function in (TASKS | MPI if mpi else TASKS).items():
            self._write_command(name, f"tasks; tasks.{function}({str(self.directory)!r})")

    def _write_command(self, name: str, work: str) -> None:
        path = self.directory / name
        program = f"import sys\nsys.path.insert(0, {str(TESTS)!r})\nfrom fake_pbs import {work}\n"
        path.write_text(f"#!{os.path.realpath(sys.executable)} -IS\n{program}")
        path.chmod(0o755)

    @property
    def path(self) -> str:
        """PATH with the cluster's commands first."""
        return f"{self.directory / 'bin'}:{os.environ['PATH']}"

    def __enter__(self) -> "FakePBS":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.end_all_processes()

    # -------------------------------------------------------------------- the server

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        program = f"import sys; sys.path.insert(0, {str(TESTS)!r})"
        program += f"; from fake_pbs import server; server.serve({str(self.directory)!r})"
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-IS", "-c", program],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_for(self.answers)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Stop the server (or kill it); jobs go on."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._process = None
        with contextlib.suppress(FileNotFoundError):
            (self.directory / "socket").unlink()

    def answers(self) -> bool:
        """Whether the server answers."""
        try:
            self._control("counts")
        except OSError:
            return False
        return True

    def end_all_processes(self) -> None:
        """End all processes of all jobs."""
        for mom in self.directory.glob("jobs/*/run-*/mom"):
            if not (mom.parent / "exit").exists():
                with contextlib.suppress(ProcessLookupError, ValueError):
                    os.kill(int(mom.read_text()), signal.SIGKILL)
        for run in self.directory.glob("jobs/*/run-*"):
            sessions.kill(run, signal.SIGKILL)
            with contextlib.suppress(OSError, ValueError):
                scratch = json.loads((run / "run.json").read_text())["environment"]["TMPDIR"]
                shutil.rmtree(scratch, ignore_errors=True)

    # -------------------------------------------------------------------- events

    def lose_node(self, node: str) -> None:
        """Cut a node's power."""
        self._control("lose", node)

    def restore_node(self, node: str) -> None:
        """Bring a lost node back."""
        self._control("restore", node)

    def preempt(self, job_id: str) -> None:
        """Take a job's nodes away, as for a job of higher priority."""
        self._control("preempt", job_id)

    def shorten(self, job_id: str, walltime_s: int) -> None:
        """Give a running job another walltime, as an operator can."""
        self._control("walltime", job_id, str(walltime_s))

    def forget(self, job_id: str) -> None:
        """Lose a job and its history, as a routing queue does with what it cannot route."""
        self._control("forget", job_id)

    def configure(self, name: str, value: float) -> None:
        """Change a time of the running server, e.g. `time_scale`."""
        self._control("configure", name, str(value))

    # -------------------------------------------------------------------- looks

    def calls(self, command: str) -> int:
        """Number of calls of a command since the server started."""
        counts: dict[str, int] = ast.literal_eval(self._control("counts"))
        return counts.get(command, 0)

    def job(self, job_id: str) -> dict[str, str]:
        """A job's attributes as the server last wrote them down."""
        text = (self.directory / "jobs" / job_id / "job.json").read_text()
        attributes: dict[str, str] = json.loads(text)["attributes"]
        return attributes

    def hosts(self, job_id: str) -> list[str]:
        """The nodes that a job runs on."""
        return [part.split("/")[0] for part in self.job(job_id)["exec_host"].split("+")]

    def processes(self) -> int:
        """How many processes of jobs there are."""
        return sum(sessions.kill(run, 0) for run in self.directory.glob("jobs/*/run-*"))

    def _control(self, *words: str) -> str:
        request = {"command": "control", "words": words}
        answer = ask(str(self.directory), request)
        if answer["returncode"]:
            raise ValueError(answer["stderr"])
        printed: str = answer["stdout"]
        return printed


def wait_for(condition: Callable[[], Any], timeout_s: float = 60.0, every_s: float = 0.05) -> Any:
    """Wait until a condition holds and return what it gives; TimeoutError if it never does."""
    deadline = time.monotonic() + timeout_s
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{condition} did not come true within {timeout_s:.0f} s")
        time.sleep(every_s)
    return result

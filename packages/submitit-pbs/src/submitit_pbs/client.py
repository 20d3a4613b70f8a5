"""PBS's commands as functions: submit, status, cancel, signal, find_by_name.

Each call starts one command, however many jobs it is about, and keeps no state. Job ids are those
of `JobStatus.id`: the sequence number without the server's name, `87`, `87[]` or `87[2]`.
"""

import ctypes
import os
import pwd
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from signal import SIGKILL

from submitit_pbs.status import SEPARATOR, JobStatus, parse_qstat

PR_SET_PDEATHSIG = 1
COMMAND_TIMEOUT_S = 120.0  # a busy server answers late; a command that hangs counts as no answer

# Exit codes are the low byte of PBS's error numbers (OpenPBS: src/include/pbs_error.h).
_JOB_FINISHED = 35  # in history: nothing left to delete or to signal
_LIMIT_REACHED = 38  # the user or project has as many jobs in the queue as allowed
_UNKNOWN_JOB = 153
_WRONG_STATE = 168  # "Request invalid for state of job": it ended or began meanwhile
_NO_SERVER = 255

_NO_SERVER_WORDS = re.compile(
    r"cannot connect to server|connection refused|connection timed out|no route to host"
    r"|communication failure|end of file|errno=15010|errno=15031",
    re.IGNORECASE,
)


class PBSError(RuntimeError):
    """A PBS command failed.

    `message` is what the command said, `returncode` its exit code.
    """

    def __init__(self, message: str, returncode: int):
        super().__init__(message)
        self.message = message
        self.returncode = returncode


class ServerUnreachable(PBSError):
    """The server did not answer. What was asked for may or may not have been done: ask later."""


class SubmissionRefused(PBSError):
    """The server does not take this job as it is: submitting it again changes nothing."""


class QueueFull(SubmissionRefused):
    """The queue takes no further job of this user or project now; later it may."""


def submit(script: str | os.PathLike[str], options: Sequence[str] = ()) -> str:
    """Submit a job script and return the job's id: `87`, or `87[]` if it is an array.

    Parameters
    ----------
    script
        a file; its `#PBS` lines count where `options` do not say otherwise
    options
        options of qsub, e.g. `["-v", "NAME=value"]`

    Raises
    ------
    QueueFull, SubmissionRefused
        with qsub's own sentence
    ServerUnreachable
        the job may have been submitted nevertheless: look with `find_by_name` before trying again
    """
    answer = _run(["qsub", *options, os.fspath(Path(script))])
    message = answer.stderr.strip() or answer.stdout.strip()
    if answer.returncode == _LIMIT_REACHED:
        raise QueueFull(message, answer.returncode)
    if answer.returncode:
        raise SubmissionRefused(message, answer.returncode)
    return job_id_in(answer.stdout)


def job_id_in(text: str) -> str:
    """Job id that qsub printed, without the server's name; PBSError if it printed no id."""
    ids = _job_ids(text)
    if len(ids) != 1:
        raise PBSError(f"qsub printed no job id but {text!r}", 0)
    return ids[0]


def status(job_ids: Iterable[str]) -> dict[str, JobStatus]:
    """Status of these jobs in PBS, by id, with one `qstat` for all of them.

    Finished jobs are included as long as the server keeps their history. An array comes with all
    its sub-jobs, and for a sub-job its whole array is asked for. A job that PBS does not know is
    missing in the answer; PBS also forgets some jobs that it accepted and then could not route.

    Raises
    ------
    ServerUnreachable
        nothing is known now: no conclusion about any job
    """
    asked = sorted({re.sub(r"\[\d+\]", "[]", job_id) for job_id in job_ids})
    if not asked:
        return {}
    # Not `-F json`: several versions print the first job only, or invalid JSON
    # (openpbs/openpbs#2672, #2541, #2677).
    answer = _run(["qstat", "-x", "-t", "-f", "-F", "dsv", "-D", SEPARATOR, *asked])
    statuses = parse_qstat(answer.stdout)
    if answer.returncode not in (0, _UNKNOWN_JOB, _JOB_FINISHED) and not statuses:
        raise PBSError(answer.stderr.strip() or "qstat failed", answer.returncode)
    return statuses


def cancel(job_ids: Iterable[str]) -> None:
    """Delete jobs, sub-jobs or arrays with one `qdel`; those that have ended are left alone.

    PBS sends TERM to the processes on a job's first node, and KILL to all its processes some
    seconds later.
    """
    asked = list(job_ids)
    if asked:
        _check(_run(["qdel", *asked]), _UNKNOWN_JOB, _JOB_FINISHED)


def signal(job_id: str, name: str) -> None:
    """Send a signal (`USR2`) to the processes of a running job; a job that has ended is left alone.

    Every process of the job's sessions receives it, the login shell that started the script, too:
    it dies of USR1, USR2 or HUP, and PBS ends the job as soon as it is gone.
    """
    _check(_run(["qsig", "-s", name, job_id]), _UNKNOWN_JOB, _JOB_FINISHED, _WRONG_STATE)


def find_by_name(*names: str) -> dict[str, list[str]]:
    """The ids of this user's jobs of these names, finished ones included, the oldest first.

    One `qselect` for one name; for several, all jobs of the user are listed, and one `qstat` names
    them. A name that no job has is missing in the answer.
    """
    if not names:
        return {}
    user = pwd.getpwuid(os.getuid()).pw_name
    named = ["-N", names[0]] if len(names) == 1 else []
    answer = _run(["qselect", "-x", *named, "-u", user])
    _check(answer, _UNKNOWN_JOB)
    ids = sorted(_job_ids(answer.stdout), key=lambda job_id: int(job_id.rstrip("[]")))
    if named:
        return {names[0]: ids} if ids else {}
    jobs = status(ids)
    ids_by_name: dict[str, list[str]] = {}
    for job_id in ids:
        if job_id in jobs and jobs[job_id].name in names:
            ids_by_name.setdefault(jobs[job_id].name, []).append(job_id)
    return ids_by_name


def _job_ids(text: str) -> list[str]:
    """The jobs and arrays in lines of ids, `87.server`; notes between them are left out."""
    return re.findall(r"^(\d+(?:\[\])?)(?:\.\S*)?\s*$", text, re.MULTILINE)


# ------------------------------------------------------------------------ running a command


def _end_with_parent() -> Callable[[], None]:
    """A `preexec_fn` with which a command that does not answer is killed with this process."""
    libc, parent = ctypes.CDLL(None), os.getpid()

    def call() -> None:
        libc.prctl(PR_SET_PDEATHSIG, SIGKILL)
        if os.getppid() != parent:  # it died before the call
            os._exit(1)

    return call


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command of PBS; ServerUnreachable if it hears nothing from the server."""
    try:
        answer = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_TIMEOUT_S,
            preexec_fn=_end_with_parent(),
            env=_environment(os.environ),
        )
    except FileNotFoundError:
        raise PBSError(
            f"There is no command {command[0]} in PATH: is this a PBS host?", 127
        ) from None
    except subprocess.TimeoutExpired:
        words = f"{command[0]} did not end within {COMMAND_TIMEOUT_S:.0f} s"
        raise ServerUnreachable(words, 124) from None
    if answer.returncode == _NO_SERVER or (
        answer.returncode and _NO_SERVER_WORDS.search(answer.stderr)
    ):
        message = answer.stderr.strip() or f"{command[0]} ended with {answer.returncode}"
        raise ServerUnreachable(message, answer.returncode)
    return answer


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """English dates and messages, and qstat's full width."""
    return {**environ, "LC_ALL": "C"}


def _check(answer: subprocess.CompletedProcess[str], *accepted: int) -> None:
    if answer.returncode not in (0, *accepted):
        raise PBSError(answer.stderr.strip() or answer.stdout.strip(), answer.returncode)

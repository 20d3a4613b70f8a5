"""Slurm, with and without accounting.

`squeue` knows what waits and runs, and for some minutes (MinJobAge) what ended; `sacct` knows the
rest where there is accounting. The answer that a job is not known is an answer.
"""

import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError
from submitit.slurm.slurm import _parse_node_list

from submitit_packs.directory import PackDirectory
from submitit_packs.errors import BadSettings, NoAnswer, QueueFull, SubmissionRefused
from submitit_packs.model import Pack
from submitit_packs.processes import run
from submitit_packs.queue import Queue, seconds
from submitit_packs.schedulers.scheduler import (
    Ending,
    JobStatus,
    Phase,
    Scheduler,
    folder,
    make_folder,
    options_of,
    pilot_command,
)

TIMEOUT_S = 120.0
SEPARATOR = "\x1f"
NO_CONTACT = re.compile(
    r"unable to contact|connection refused|timed out|communication|zero bytes|slurmdbd", re.I
)
FULL = re.compile(r"QOSMaxSubmit|AssocMaxSubmit|job submit limit|MaxSubmitJobs", re.I)
# Slurm's states that are not an end; of a requeued job, the last of several lines counts.
WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"}
RUNNING = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT"}
ENDINGS = {
    "COMPLETED": (Ending.DONE, "completed"),
    "FAILED": (Ending.DONE, "failed"),
    "TIMEOUT": (Ending.WALLTIME, "walltime exceeded"),
    "DEADLINE": (Ending.WALLTIME, "deadline exceeded"),
    "CANCELLED": (Ending.CANCELLED, "cancelled"),
    "PREEMPTED": (Ending.PREEMPTED, "preempted"),
    "NODE_FAIL": (Ending.NODE_LOST, "a node failed"),
    "BOOT_FAIL": (Ending.NODE_LOST, "a node did not boot"),
    "OUT_OF_MEMORY": (Ending.MEMORY, "out of memory"),
    "LAUNCH_FAILED": (Ending.NOT_STARTED, "could not be launched"),
}
# Reasons for which a job waits for ever: Slurm accepts what can never run.
NEVER = {
    "PartitionNodeLimit": "it has more or fewer nodes than the partition allows",
    "PartitionTimeLimit": "it is longer than the partition allows",
    "BadConstraints": "no node has what it needs",
    "AccountNotAllowed": "the account may not use the partition",
    "InvalidAccount": "there is no such account",
    "JobHeldAdmin": "an administrator holds it",
    "launch failed requeued held": "it is held after failed launches",
}
LIMITED_TO = ("Accounts", "Groups", "Qos")
FORBIDDEN = re.compile(r"can't use this partition|not permitted to use this partition")


class Slurm(Scheduler):
    """submitit's `slurm` cluster."""

    name = "slurm"
    parameters = frozenset(submitit.SlurmExecutor._valid_parameters())

    def __init__(self, account: str | None = None) -> None:
        self.account = account

    def submit(self, pack: Pack, directory: PackDirectory) -> str:
        """Submit with sbatch."""
        make_folder(directory)
        try:
            job = self._executor(pack, directory)._submit_command(pilot_command(directory))
        except (FailedJobError, FailedSubmissionError) as error:
            raise _refusal(str(error)) from None
        return str(job.job_id)

    def script(self, pack: Pack, directory: PackDirectory) -> str:
        """The file that sbatch is given."""
        executor = self._executor(pack, directory)
        return str(executor._make_submission_file_text(pilot_command(directory), pack.id))

    def _executor(self, pack: Pack, directory: PackDirectory) -> Any:
        options = options_of(pack, self.name)
        more = options.pop("additional_parameters", {})
        setup = [*options.pop("setup", ()), *pack.setup]
        try:
            executor = submitit.SlurmExecutor(folder(directory))
        except RuntimeError:
            raise BadSettings("srun and sbatch are not here; is this a Slurm cluster?") from None
        if pack.queue:
            options["partition"] = pack.queue
        if self.account:
            options["account"] = self.account
        executor.update_parameters(
            job_name=pack.id,
            time=pack.walltime_s // 60,
            use_srun=False,  # the pilot starts on the first node alone, and calls srun once
            # Of submitit's warning: to the batch shell alone, which ignores it; otherwise it ends
            # every process of every step.
            setup=["trap '' USR2", *setup],
            stderr_to_stdout=True,
            # As these: `nodes=` makes submitit wait for a result of each node.
            additional_parameters={
                "nodes": pack.nodes,
                "requeue": True,
                "no-kill": True,  # a lost node costs its members, not the others'
                "signal": "B:USR2@60",
                "exclusive": True,
                **more,
            },
            **options,
        )
        return executor

    def status(self, jobs: Mapping[str, str]) -> dict[str, JobStatus]:
        """Status of jobs by one `squeue`, and one `sacct` for those that it no longer lists."""
        statuses = self._squeue(list(jobs.values()))
        if missing := [job for job in jobs.values() if job not in statuses]:
            statuses |= self._sacct(missing)
        return {p: statuses.get(job, JobStatus(Phase.UNKNOWN)) for p, job in jobs.items()}

    def _squeue(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        form = SEPARATOR.join(["%i", "%T", "%N", "%r"])
        command = ["squeue", "--noheader", "--states=all", f"--format={form}"]
        done = _run([*command, f"--jobs={','.join(job_ids)}"])
        if done.returncode and "Invalid job id" not in done.stderr:
            raise NoAnswer(_words(done))
        if done.returncode and len(job_ids) > 1:  # one unknown id hides the others
            done = _run([*command, "--me"])
            if done.returncode:
                raise NoAnswer(_words(done))
        return parse(done.stdout, set(job_ids))

    def _sacct(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """Status of jobs by accounting; empty if there is no accounting, or it is down."""
        command = [
            "sacct",
            "--noheader",
            "--parsable2",
            "--allocations",
            f"--delimiter={SEPARATOR}",
        ]
        fields = "--format=JobID,State,NodeList,Reason"
        done = _run([*command, fields, f"--jobs={','.join(job_ids)}"])
        return parse(done.stdout, set(job_ids)) if done.returncode == 0 else {}

    def find(self, packs: Iterable[str]) -> dict[str, str]:
        """Jobs by their names, ended ones included."""
        form = SEPARATOR.join(["%i", "%j"])
        names = ",".join(packs)
        command = ["squeue", "--noheader", "--me", "--states=all", f"--format={form}"]
        done = _run([*command, f"--name={names}"])
        if done.returncode:
            raise NoAnswer(_words(done))
        pairs = (line.split(SEPARATOR) for line in done.stdout.splitlines())
        return {pair[1]: pair[0] for pair in pairs if len(pair) == 2}

    def cancel(self, job_ids: Iterable[str]) -> None:
        """One scancel."""
        if ids := list(job_ids):
            done = _run(["scancel", *ids])
            if done.returncode and NO_CONTACT.search(done.stderr):
                raise NoAnswer(_words(done))


def parse(text: str, job_ids: set[str]) -> dict[str, JobStatus]:
    """Jobs' status from lines of id, state, nodes and reason; the last line of a job counts."""
    statuses = {}
    for line in text.splitlines():
        job, *rest = line.split(SEPARATOR)
        if job in job_ids and len(rest) == 3:
            statuses[job] = status_of(*rest)
    return statuses


def status_of(state: str, nodes: str, reason: str) -> JobStatus:
    """The status of a state in Slurm's words, such as 'CANCELLED by 1001'."""
    word, _, by = state.partition(" ")
    word = word.rstrip("+")
    hosts = tuple(_parse_node_list(nodes)) if nodes and nodes[0].isalnum() else ()
    if word in WAITING:
        if why := never(reason):
            return JobStatus(Phase.QUEUED, Ending.NOT_STARTED, why)
        return JobStatus(Phase.QUEUED, words=reason if reason != "None" else "")
    if word in RUNNING:  # of a job that ends, the nodes are named that have not ended
        return JobStatus(Phase.RUNNING, nodes=() if word == "COMPLETING" else hosts)
    ending, words = ENDINGS.get(word, (Ending.DONE, word.lower()))
    if by:
        words += f" {by}"
    return JobStatus(Phase.ENDED, ending, f"{words} ({word})", hosts)


def never(reason: str) -> str | None:
    """Reason why a job waits for ever; None if it does not."""
    if FORBIDDEN.search(reason):
        return reason
    words = NEVER.get(reason) or NEVER.get(reason.replace("_", " "))
    return f"{words} ({reason})" if words else None


def partitions() -> tuple[Queue, ...]:
    """The cluster's partitions and their limits, the default one first."""
    done = _run(["scontrol", "--oneliner", "show", "partition"])
    if done.returncode:
        raise BadSettings(f"scontrol does not name the partitions: {_words(done)}")
    queues = []
    for line in done.stdout.splitlines():
        facts = dict(re.findall(r"(\S+?)=(\S*)", line))
        if facts.get("State", "UP") != "UP":
            continue
        queue = Queue(
            name=facts["PartitionName"],
            min_nodes=max(1, int(facts.get("MinNodes", "1"))),
            max_nodes=_number(facts.get("MaxNodes"), facts.get("TotalNodes")),
            max_walltime_s=_seconds(facts.get("MaxTime", "UNLIMITED")),
            preemptable=facts.get("PreemptMode", "OFF") != "OFF",
            # Slurm accepts a job of those who may not use it, and keeps it for ever.
            by_request=any(facts.get(f"Allow{who}", "ALL") != "ALL" for who in LIMITED_TO),
        )
        queues.append((facts.get("Default") != "YES", queue))
    return tuple(queue for _, queue in sorted(queues, key=lambda pair: pair[0]))


def gpus_per_node() -> int:
    """The GPUs of a node: the most that a node has."""
    done = _run(["sinfo", "--noheader", "--Node", "--format=%G"])
    counts = re.findall(r"gpu:(?:[\w.-]+:)?(\d+)", done.stdout)
    return max(map(int, counts), default=0)


def _number(*words: str | None) -> int:
    return min((int(w) for w in words if w and w.isdecimal()), default=10**6)


def _seconds(time: str) -> int:
    return seconds(time) if ":" in time else 366 * 86400


def _refusal(message: str) -> Exception:
    lines = [line for line in message.splitlines() if "error:" in line] or message.splitlines()
    words = " ".join(line.replace("sbatch: error: ", "") for line in lines).strip()
    if NO_CONTACT.search(words):
        return NoAnswer(words)
    return QueueFull(words) if FULL.search(words) else SubmissionRefused(words)


def _words(done: subprocess.CompletedProcess[str]) -> str:
    return " ".join((done.stderr or done.stdout).split())[:300] or f"exit code {done.returncode}"


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return run(command, timeout=TIMEOUT_S)
    except FileNotFoundError:
        raise BadSettings(f"{command[0]} is not here; is this a Slurm cluster?") from None
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"{command[0]} did not answer within {TIMEOUT_S:.0f} s") from None

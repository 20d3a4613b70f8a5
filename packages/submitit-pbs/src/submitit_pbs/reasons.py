"""Reasons of a job's end, and their words."""

import re
import signal
from dataclasses import dataclass
from enum import StrEnum

from submitit_pbs.status import JobStatus


class Ending(StrEnum):
    """The ways a job ends, by who or what ended it."""

    SUCCEEDED = "succeeded"  # its script exited with 0
    FAILED = "failed"  # its script exited otherwise, or died of a signal of its own
    WALLTIME = "walltime"  # killed at the end of its walltime
    MEMORY = "memory"  # killed for memory
    CPU_TIME = "cpu_time"  # killed for CPU time
    CANCELLED = "cancelled"  # deleted with qdel
    PREEMPTED = "preempted"  # deleted by the scheduler for a job of higher priority
    NODE_LOST = "node_lost"  # a node or its contact was lost, and the job was not rerunnable
    HELD = "held"  # PBS gave up starting it: too many failed attempts
    NOT_STARTED = "not_started"  # PBS could not start it
    UNKNOWN = "unknown"  # finished, and PBS does not say how
    VANISHED = "vanished"  # PBS does not know it


# The infrastructure's doing: the same job may succeed when it is submitted again.
TRANSIENT = frozenset({Ending.PREEMPTED, Ending.NODE_LOST})


@dataclass(frozen=True)
class Reason:
    """End of a job, and a sentence part on it."""

    ending: Ending
    words: str

    def __str__(self) -> str:
        return self.words


# What PBS reports below 0 (OpenPBS: src/include/job.h, JOB_EXEC_…).
_BY_EXIT_STATUS = {
    -1: (Ending.NOT_STARTED, "could not be started"),
    -2: (Ending.NOT_STARTED, "could not be started after its files were staged in"),
    -3: (Ending.NOT_STARTED, "could not be started"),
    -4: (Ending.NODE_LOST, "aborted because its node restarted"),
    -5: (Ending.NODE_LOST, "aborted because its node restarted"),
    -6: (Ending.NODE_LOST, "aborted because its node restarted"),
    -7: (Ending.NOT_STARTED, "could not be restarted from its checkpoint"),
    -10: (Ending.NOT_STARTED, "could not be started: its user or group is not valid on the node"),
    -11: (Ending.PREEMPTED, "stopped to be run again"),
    -12: (Ending.PREEMPTED, "checkpointed and stopped"),
    -13: (Ending.NOT_STARTED, "could not be started: bad password"),
    -14: (Ending.NODE_LOST, "one of its nodes was lost"),
    -15: (Ending.PREEMPTED, "stopped to be run again from its checkpoint"),
    -16: (Ending.NOT_STARTED, "rejected by a hook on the node"),
    -17: (Ending.NOT_STARTED, "rejected by a hook on the node"),
    -18: (Ending.NOT_STARTED, "requeued by a hook"),
    -19: (Ending.CANCELLED, "deleted by a hook"),
    -20: (Ending.NODE_LOST, "its first node was lost"),
    -21: (Ending.NOT_STARTED, "could not be started: PBS's directory on the node is not safe"),
    -22: (Ending.NOT_STARTED, "a hook on the node failed"),
    -23: (Ending.NOT_STARTED, "could not be started: no Kerberos credentials"),
    -24: (Ending.CPU_TIME, "used more cores than requested"),
    -25: (Ending.CPU_TIME, "used more cores than requested"),
    -26: (Ending.MEMORY, "virtual memory exceeded"),
    -27: (Ending.MEMORY, "memory exceeded"),
    -28: (Ending.CPU_TIME, "CPU time exceeded"),
    -29: (Ending.WALLTIME, "walltime exceeded"),
    -30: (Ending.NODE_LOST, "its nodes could not be joined"),
}

_LIMIT_EXCEEDED = {
    "walltime": Ending.WALLTIME,
    "mem": Ending.MEMORY,
    "vmem": Ending.MEMORY,
    "cput": Ending.CPU_TIME,
    "ncpus": Ending.CPU_TIME,
}

NEVER_KNOWN = Reason(
    Ending.VANISHED, "accepted by qsub, then unknown to PBS: its queue may not take such jobs"
)
FORGOTTEN = Reason(Ending.VANISHED, "no longer in PBS's history")


def reason(status: JobStatus, output: str = "") -> Reason | None:
    """Reason of a job's end; None while it waits, runs, or will run again by itself.

    A job that PBS holds after too many failed starts has ended, too: it waits for ever.

    Parameters
    ----------
    status
        what qstat says of the job
    output
        the end of the file that PBS writes the job's output to, where it notes who killed the job
    """
    if _is_held_for_ever(status):
        return Reason(Ending.HELD, f"held after {status.run_count} failed starts")
    if not status.is_finished:
        return None
    code = status.exit_status
    shown = "" if code is None else f" (Exit_status {code})"
    deleted_by = re.search(r"terminated by (\S+?)(@\S*)?$", status.comment)
    exceeded = re.search(r"exceeded resource (\w+)", status.comment)
    killed = re.search(r"^=>> PBS: job killed: (node .*)$", output, re.MULTILINE)
    if deleted_by and deleted_by[1] == "Scheduler":
        return Reason(Ending.PREEMPTED, f"preempted by the scheduler{shown}")
    if deleted_by:
        return Reason(Ending.CANCELLED, f"deleted by {deleted_by[1]}{shown}")
    if exceeded and code in (None, *range(-30, -23)):
        ending = _LIMIT_EXCEEDED.get(exceeded[1], Ending.FAILED)
        return Reason(ending, f"{exceeded[1]} exceeded{shown}")
    if killed:
        return Reason(Ending.NODE_LOST, f"killed by PBS: {killed[1]}{shown}")
    if code in _BY_EXIT_STATUS:
        ending, words = _BY_EXIT_STATUS[code]
        return Reason(ending, f"{words}{shown}")
    if code is None:
        if status.comment.endswith("terminated"):
            return Reason(Ending.CANCELLED, "deleted before it ran")
        return Reason(Ending.UNKNOWN, "ended, and PBS does not say how")
    if code == 0:
        return Reason(Ending.SUCCEEDED, "succeeded")
    if code > 256:
        return Reason(Ending.FAILED, f"killed by {_signal_name(code - 256)}{shown}")
    if code > 0:
        return Reason(Ending.FAILED, f"failed with exit code {code}")
    return Reason(Ending.UNKNOWN, f"ended with Exit_status {code}, which PBS's sources do not list")


def waiting(status: JobStatus) -> str:
    """Reason of a job's wait: the scheduler's comment, or its hold; empty if it does not wait."""
    if status.state == "H":
        return _HOLDS.get(status.attributes.get("Hold_Types", ""), "held")
    return status.comment if status.state in ("Q", "W", "T", "S", "U", "M") else ""


_HOLDS = {"u": "held by its user", "o": "held by an operator", "s": "held by PBS"}


def _is_held_for_ever(status: JobStatus) -> bool:
    """Also after it was deleted: then the comment ends with `and terminated`."""
    return (status.state == "H" or status.is_finished) and (
        "too many failed attempts" in status.comment
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

"""Reasons of a member's end, in words, and decisions on its next run."""

from dataclasses import dataclass

from submitit_packs.directory import Result, State
from submitit_packs.schedulers import Ending, JobStatus

MOST_TRIES = 5  # times that a member runs again after what was not its fault
# Jobs that end so end their members with them, for good: by hand, or by a limit of their own.
FOR_GOOD = {Ending.CANCELLED, Ending.WALLTIME, Ending.MEMORY, Ending.NOT_STARTED}
# Of these, the limits, which are reached by members that run: those still in line run again.
LIMITS = {Ending.WALLTIME, Ending.MEMORY}


@dataclass(frozen=True)
class Verdict:
    """Decision on the next run of a member whose pack is over, with the reason."""

    again: bool
    reason: str


def verdict(
    result: Result | None,
    job: JobStatus,
    tries: int,
    never_began: str = "",
    lost: str = "",
    in_line: bool = False,
) -> Verdict:
    """The verdict on a member without a final result whose pack's job is over.

    Deferred members, and those that were lost with a node, a manager or a preempted job, run
    again. `never_began` is the pilot's last words if no member of the pack ever began: an
    environment that does not work works no better the next time. `lost` is the pilot's reason.
    `in_line` is true of a member that was not begun in a pack that began others.
    """
    if result is not None and result.state == State.DEFERRED:
        again, reason = True, f"deferred: {result.reason}"
    elif job.ending in FOR_GOOD:
        again, reason = in_line and job.ending in LIMITS, job.words
    elif never_began:
        return Verdict(False, f"its pack could not start: {never_began}")
    elif result is not None and job.ending in (None, Ending.DONE):
        again, reason = True, result.reason or "ended with its pack"
    else:
        again, reason = True, lost or job.words or "no trace of its job"
    if again and tries >= MOST_TRIES:
        return Verdict(False, f"{reason}; it ran {tries + 1} times")
    return Verdict(again, reason)


def words(result: Result, log_tail: str = "") -> str:
    """Words on the end of a member with a final result, with the last lines of its output."""
    where = f"on {result.host}" + (f" GPU {result.gpu}" if result.gpu else "")
    text = f"{result.state}: {result.reason} ({where}, {result.end_s - result.start_s:.0f} s)"
    return f"{text}\n{log_tail}" if log_tail else text

"""The states of all jobs of a process, by one qstat a cycle."""

import re
import time
from typing import Any

from submitit.core import core, logger

from submitit_pbs import client
from submitit_pbs.reasons import FORGOTTEN, NEVER_KNOWN, Ending, Reason, reason
from submitit_pbs.status import JobStatus

LONGEST_BACK_OFF_S = 600.0
UNKNOWN_GRACE_S = 120.0  # a job that PBS does not know for so long has vanished

# submitit's words, which are Slurm's.
_STATES = {
    "Q": "PENDING",
    "H": "PENDING",
    "W": "PENDING",
    "T": "PENDING",
    "M": "PENDING",
    "R": "RUNNING",
    "B": "RUNNING",
    "E": "COMPLETING",
    "S": "SUSPENDED",
    "U": "SUSPENDED",
}
_FINAL_STATES = {
    Ending.SUCCEEDED: "COMPLETED",
    Ending.FAILED: "FAILED",
    Ending.WALLTIME: "TIMEOUT",
    Ending.MEMORY: "OUT_OF_MEMORY",
    Ending.CPU_TIME: "FAILED",
    Ending.CANCELLED: "CANCELLED",
    Ending.PREEMPTED: "PREEMPTED",
    Ending.NODE_LOST: "NODE_FAIL",
    Ending.HELD: "HELD",
    Ending.NOT_STARTED: "BOOT_FAIL",
    Ending.UNKNOWN: "COMPLETED",
    Ending.VANISHED: "VANISHED",
}


class PBSInfoWatcher(core.InfoWatcher):
    """Asks PBS for all jobs at once, and goes on when the server does not answer.

    Jobs are registered by their PBS ids (`87`, `87[2]`). After a failed call the next one comes
    later and later, up to ten minutes; no job changes its state meanwhile.
    """

    def __init__(self, delay_s: int = 30):
        super().__init__(delay_s)
        self._statuses: dict[str, JobStatus] = {}
        self._unknown_since: dict[str, float] = {}
        self._failures = 0
        self._retry_at = 0.0

    # -------------------------------------------------------------------- what is known

    def status(self, job_id: str, mode: str = "standard") -> JobStatus | None:
        """Last status of a job in PBS; None if PBS never knew it."""
        self.get_info(job_id, mode)
        return self._statuses.get(job_id)

    def reason(self, job_id: str, mode: str = "standard") -> Reason | None:
        """Reason of a job's end; None if it has not ended."""
        status = self.status(job_id, mode)
        if status is not None and (ended := reason(status)) is not None:
            return ended
        since = self._unknown_since.get(job_id)
        if since is None or time.time() - since < UNKNOWN_GRACE_S:
            return None
        return NEVER_KNOWN if status is None else FORGOTTEN

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        """submitit's word for a job's state."""
        ended = self.reason(job_id, mode)
        if ended is not None:
            return _FINAL_STATES[ended.ending]
        status = self._statuses.get(job_id)
        return _STATES.get(status.state, "UNKNOWN") if status else "UNKNOWN"

    def is_done(self, job_id: str, mode: str = "standard") -> bool:
        """True if a job has ended and will not run again by itself."""
        return self.reason(job_id, mode) is not None

    # -------------------------------------------------------------------- asking

    def update(self) -> None:
        """Ask PBS for all jobs that have not ended; no failure is an error here."""
        asked = self._registered - self._finished
        if not asked or time.time() < self._retry_at:
            return
        self._num_calls += 1
        self._last_status_check = time.time()
        try:
            statuses = client.status(asked)
        except client.PBSError as error:
            self._back_off(error)
            return
        if self._failures:
            logger.get_logger().warning("PBS answers again")
        self._failures, self._retry_at = 0, 0.0
        self._statuses |= statuses
        for job_id in asked:
            if job_id in statuses:
                self._unknown_since.pop(job_id, None)
                self._info_dict[job_id] = self._info(statuses[job_id])
            elif not _waits_in_array(job_id, statuses):
                self._unknown_since.setdefault(job_id, time.time())
            if self.is_done(job_id, mode="cache"):
                self._finished.add(job_id)

    def _back_off(self, error: client.PBSError) -> None:
        self._failures += 1
        wait_s = min(LONGEST_BACK_OFF_S, 2.0**self._failures)
        self._retry_at = time.time() + wait_s
        if self._failures == 1:
            logger.get_logger().warning(f"No answer from PBS, asking again later: {error}")

    def _info(self, status: JobStatus) -> dict[str, str]:
        info: dict[str, Any] = {"JobID": status.id, **status.attributes}
        return info | {"State": self.get_state(status.id, mode="cache")}

    def register_job(self, job_id: str) -> None:
        """Ask for a job, too, from the next cycle on."""
        self._registered.add(job_id)
        self._start_time = time.time()

    def clear(self) -> None:
        """Forget all answers."""
        super().clear()
        self._statuses, self._unknown_since, self._retry_at = {}, {}, 0.0


def _waits_in_array(job_id: str, statuses: dict[str, JobStatus]) -> bool:
    """True if a sub-job that qstat does not list is of an array that goes on."""
    array = statuses.get(re.sub(r"\[\d+\]", "[]", job_id))
    return array is not None and not array.is_finished

"""A submitted job: its state, its result, and why it ended."""

import contextlib
import re
from typing import Any, TypeVar

from submitit.core import core, logger, utils

from submitit_pbs import client, resubmission
from submitit_pbs.reasons import Reason
from submitit_pbs.watcher import PBSInfoWatcher

R = TypeVar("R", covariant=True)


def submitit_id(pbs_id: str) -> str:
    """`87` for `87` and for the array `87[]`; `87_2` for its sub-job `87[2]`."""
    match = re.fullmatch(r"(\d+)(?:\[(\d*)\])?", pbs_id)
    if not match:
        raise ValueError(f"{pbs_id!r} is not the id of a PBS job")
    return f"{match[1]}_{match[2]}" if match[2] else match[1]


def pbs_id(submitit_id: str) -> str:
    """`87` for `87`, `87[2]` for `87_2`."""
    number, _, index = submitit_id.partition("_")
    return f"{number}[{index}]" if index else number


class PBSJob(core.Job[R]):
    """A job or sub-job on PBS.

    `job_id` stays the same when the job is submitted again after a checkpoint; `pbs_job_id` is the
    id of the PBS job that runs it now.
    """

    watcher = PBSInfoWatcher()

    @property
    def pbs_job_id(self) -> str:
        """The id that PBS's commands take now."""
        return resubmission.present_pbs_job(self.paths) or pbs_id(self.job_id)

    @property
    def reason(self) -> Reason | None:
        """Reason of the job's end, as PBS knows it; None while it goes on."""
        return self.watcher.reason(self.pbs_job_id)

    # -------------------------------------------------------------------- state

    def _register_in_watcher(self) -> None:
        self.watcher.register_job(self.pbs_job_id)

    @property
    def state(self) -> str:
        """submitit's word for the job's state."""
        if resubmission.is_asked_for(self.paths):
            return "REQUEUED"
        return self.watcher.get_state(self.pbs_job_id)

    def get_info(self, mode: str = "force") -> dict[str, str]:
        """PBS's attributes of the job."""
        info: dict[str, str] = self.watcher.get_info(self.pbs_job_id, mode=mode)
        return info

    def done(self, force_check: bool = False) -> bool:
        """True if the job has ended; a requested resubmission is done here."""
        self._refresh_folder()
        if self.paths.result_pickle.exists():
            return True
        if self._goes_on():
            return False
        asked = self.pbs_job_id
        if not self.watcher.is_done(asked, mode="force" if force_check else "standard"):
            return False
        self._refresh_folder()  # what the job wrote at its end may be seen only now
        return not self._goes_on() and self.pbs_job_id == asked

    def _goes_on(self) -> bool:
        """True if the job has asked to be submitted again; then it has been, if PBS takes it."""
        if not resubmission.is_asked_for(self.paths):
            return False
        try:
            resubmission.resubmit(self.paths)
        except client.SubmissionRefused as refused:
            if not isinstance(refused, client.QueueFull):
                raise
            logger.get_logger().warning(f"Not resubmitted yet: {refused}")
        except client.ServerUnreachable as error:
            logger.get_logger().warning(f"Not resubmitted yet: {error}")
        else:
            self._register_in_watcher()
        return True

    def _refresh_folder(self) -> None:
        """Make a network file system refresh its list of the folder."""
        folder = self.paths.folder
        with contextlib.suppress(OSError):
            folder.chmod(folder.stat().st_mode)

    # -------------------------------------------------------------------- outcome

    def _get_outcome_and_result(self) -> tuple[str, Any]:
        try:
            outcome: tuple[str, Any] = super()._get_outcome_and_result()
        except utils.UncompletedJobError as error:
            ended = self.reason
            if ended is None:
                raise
            words = f"Job {self.job_id}: {ended}\n{error}"
            raise utils.UncompletedJobError(words) from None
        return outcome

    def cancel(self, check: bool = True) -> None:
        """Delete the job; one that has ended is left alone.

        With `check` an unreachable server is an error.
        """
        try:
            client.cancel([self.pbs_job_id])
        except client.PBSError:
            if check:
                raise

    def _interrupt(self, timeout: bool = False) -> None:
        """Send USR2 to the job, as the script does before the end of the walltime."""
        client.signal(self.pbs_job_id, "USR2")

    def __del__(self) -> None:
        asked = getattr(self, "_cancel_at_deletion", False)
        if asked and not self.watcher.is_done(self.pbs_job_id, mode="cache"):
            self.cancel(check=False)

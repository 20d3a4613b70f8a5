"""Environment of a function inside its job, and the handling of signals there."""

import os
import re
import signal
import types
from pathlib import Path

from submitit.core import job_environment, logger, utils

from submitit_pbs import resubmission
from submitit_pbs.script import JOB_ID_VARIABLE


class PBSJobEnvironment(job_environment.JobEnvironment):
    """Environment of a PBS job: one process, on the first of the job's nodes.

    TERM, which PBS sends at qdel, at a preemption and at the end of the walltime, makes a
    checkpoint if the function has one, and ends the process without a result. USR2, which the job
    script sends before the end of the walltime, makes a checkpoint and asks for a resubmission.
    """

    _env = {"job_id": "PBS_JOBID", "array_task_id": "PBS_ARRAY_INDEX"}  # noqa: RUF012

    @property
    def _id(self) -> str:
        """The id as submitit writes it; a resubmitted job keeps that of the first."""
        if JOB_ID_VARIABLE in os.environ:
            return os.environ[JOB_ID_VARIABLE]
        match = re.match(r"\d+", os.environ["PBS_JOBID"])
        number = match[0] if match else os.environ["PBS_JOBID"]
        index = os.environ.get("PBS_ARRAY_INDEX")
        return number if index is None else f"{number}_{index}"

    @property
    def raw_job_id(self) -> str:
        """The number of the job or of its array."""
        return self._id.partition("_")[0]

    @property
    def array_job_id(self) -> str | None:
        """Number of the array; None outside of an array."""
        return self.raw_job_id if "_" in self._id else None

    @property
    def array_task_id(self) -> str | None:
        """Index in the array; None outside of an array."""
        return self._id.partition("_")[2] or None

    @property
    def hostnames(self) -> list[str]:
        """The names of the job's nodes, first that of this process."""
        return list(dict.fromkeys(Path(os.environ["PBS_NODEFILE"]).read_text().split()))

    @property
    def hostname(self) -> str:
        """The name of the node that this process runs on."""
        return self.hostnames[0]

    num_tasks = 1  # type: ignore[assignment]
    node = global_rank = local_rank = 0  # type: ignore[assignment]

    @property
    def num_nodes(self) -> int:
        """Number of the job's nodes."""
        return len(self.hostnames)

    def _handle_signals(self, paths: utils.JobPaths, submission: utils.DelayedSubmission) -> None:
        handler = _SignalHandler(self, paths, submission)
        signal.signal(signal.SIGCONT, handler.bypass)
        signal.signal(signal.SIGTERM, handler.checkpoint_and_exit)
        signal.signal(self._usr_sig(), handler.checkpoint_and_try_requeue)

    def _requeue(self, countdown: int) -> None:
        """Ask whoever waits for the job to submit it again: a user may not `qrerun` it."""
        resubmission.ask_for(self.paths)
        logger.get_logger().info(f"To be resubmitted ({countdown} remaining timeouts)")


class _SignalHandler(job_environment.SignalHandler):
    """Takes the first signal only: PBS and `timeout` both send theirs to this process."""

    def checkpoint_and_try_requeue(self, signum: int, frame: types.FrameType | None = None) -> None:
        self._ignore_further()
        super().checkpoint_and_try_requeue(signum, frame)

    def checkpoint_and_exit(self, signum: int, frame: types.FrameType | None = None) -> None:
        self._ignore_further()
        super().checkpoint_and_exit(signum, frame)

    def _ignore_further(self) -> None:
        for number in (signal.SIGTERM, self.env._usr_sig()):
            signal.signal(number, signal.SIG_IGN)

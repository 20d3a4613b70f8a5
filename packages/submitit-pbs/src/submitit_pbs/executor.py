"""The executor: functions become PBS jobs and job arrays."""

import shlex
import shutil
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from submitit.core import core, utils

from submitit_pbs import client
from submitit_pbs.job import PBSJob, submitit_id
from submitit_pbs.script import PARAMETER_NAMES, Parameters, script


def job_script(
    parameters: Parameters, command: str, folder: Path, array_size: int | None = None
) -> str:
    """The text of the job script that an executor with this folder submits."""
    return script(parameters, command, folder, output_of(folder), Path.cwd(), array_size)


def output_of(folder: Path) -> Path:
    """Directory of the output that PBS writes before the scripts' logs are open."""
    return Path(utils.JobPaths.get_first_id_independent_folder(folder))


class PBSExecutor(core.PicklingExecutor):
    """Submits functions to PBS Professional or OpenPBS.

    Parameters
    ----------
    folder
        for scripts, pickled functions, results and logs, on a file system that the nodes share;
        `%j` in it stands for a job's id
    max_num_timeout
        how often a function with a checkpoint is submitted again after it reached the walltime
    max_pickle_size_gb
        the largest function and arguments, in all jobs of an array together
    python
        a shell command that starts Python in the job; by default this Python

    Its parameters are those of `submitit_pbs.script.Parameters`.
    """

    job_class = PBSJob

    def __init__(
        self,
        folder: str | Path,
        max_num_timeout: int = 3,
        max_pickle_size_gb: float = 1.0,
        python: str | None = None,
    ):
        super().__init__(folder, max_num_timeout, max_pickle_size_gb)
        self.python = shlex.quote(sys.executable) if python is None else python
        if self.affinity() <= 0:
            raise RuntimeError("There is no qsub in PATH: is this a host of a PBS cluster?")

    @classmethod
    def affinity(cls) -> int:
        """2, a cluster, where there is a qsub; -1, not here, elsewhere."""
        return -1 if shutil.which("qsub") is None else 2

    # -------------------------------------------------------------------- parameters

    @classmethod
    def _equivalence_dict(cls) -> core.EquivalenceDict:
        return {
            "name": "job_name",
            "timeout_min": "walltime",
            "mem_gb": "mem",
            "nodes": "nodes",
            "cpus_per_task": "cpus_per_task",
            "gpus_per_node": "gpus_per_node",
            "tasks_per_node": "tasks_per_node",
        }

    @classmethod
    def _valid_parameters(cls) -> set[str]:
        return set(PARAMETER_NAMES)

    def _convert_parameters(self, params: dict[str, Any]) -> dict[str, Any]:
        params = super()._convert_parameters(params)
        if "mem" in params:
            params["mem"] = f"{round(1024 * params['mem'])}mb"
        return params

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        """Change parameters; ValueError for an unknown name or an invalid value."""
        unknown = sorted(set(kwargs) - set(PARAMETER_NAMES))
        if unknown:
            names = ", ".join(PARAMETER_NAMES)
            raise ValueError(f"PBSExecutor has no parameter {', '.join(unknown)}; it has {names}")
        checked = Parameters(**{**self.parameters, **kwargs})
        if "walltime" in kwargs:  # submitit takes it for minutes when it sets time-outs
            kwargs["walltime"] = checked.walltime_s / 60
        super()._internal_update_parameters(**kwargs)

    # -------------------------------------------------------------------- submission

    @property
    def _output(self) -> Path:
        return output_of(self.folder)

    @property
    def _submitit_command_str(self) -> str:
        return f"{self.python} -u -m submitit.core._submit {shlex.quote(str(self.folder))}"

    def _num_tasks(self) -> int:
        return 1

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        return self._script(command, None)

    def _script(self, command: str, array_size: int | None) -> str:
        return job_script(Parameters(**self.parameters), command, self.folder, array_size)

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        return ["qsub", str(submission_file_path)]

    @staticmethod
    def _get_job_id_from_submission_command(string: bytes | str) -> str:
        text = string if isinstance(string, str) else string.decode()
        return submitit_id(client.job_id_in(text))

    def _submit_command(self, command: str) -> PBSJob[Any]:
        """Submit one job; PBSError with qsub's own sentence if PBS does not take it."""
        return self._submit(command, None)[0]

    def _submit(self, command: str, array_size: int | None) -> list[PBSJob[Any]]:
        self._output.mkdir(parents=True, exist_ok=True)
        path = self._output / f".submission_file_{uuid.uuid4().hex}.sh"
        path.write_text(self._script(command, array_size))
        try:
            first = submitit_id(client.submit(path))
        except client.PBSError:
            path.unlink()
            raise
        ids = [first] if array_size is None else [f"{first}_{i}" for i in range(array_size)]
        jobs: list[PBSJob[Any]] = [PBSJob(folder=self.folder, job_id=job_id) for job_id in ids]
        jobs[0].paths.move_temporary_file(path, "submission_file", keep_as_symlink=True)
        return jobs

    def _internal_process_submissions(
        self, delayed_submissions: list[utils.DelayedSubmission]
    ) -> list[core.Job[Any]]:
        """Submit one job, or an array; nothing is left behind if PBS does not take it."""
        count = len(delayed_submissions)
        pickles: list[Path] = []
        try:
            for delayed in delayed_submissions:
                pickles.append(self._pickle(delayed))
                self._check_size(pickles[0], count)
            self._throttle()
            self._last_job_submitted = time.time()
            jobs = self._submit(self._submitit_command_str, None if count == 1 else count)
        except BaseException:
            for pickle in pickles:
                pickle.unlink()
            raise
        for job, pickle in zip(jobs, pickles, strict=True):
            job.paths.move_temporary_file(pickle, "submitted_pickle")
        return list(jobs)

    def _pickle(self, delayed: utils.DelayedSubmission) -> Path:
        minutes = self.parameters.get("walltime", Parameters().walltime)
        delayed.set_timeout(minutes, self.max_num_timeout)
        self._output.mkdir(parents=True, exist_ok=True)
        path = self._output / f"{uuid.uuid4().hex}.pkl"
        delayed.dump(path)
        return path

    def _check_size(self, pickle: Path, count: int) -> None:
        size_gb = count * pickle.stat().st_size / 1024**3
        if size_gb > self.max_pickle_size_gb:
            raise RuntimeError(
                f"{count} pickled functions would take {size_gb:.2f} GB, and max_pickle_size_gb is"
                f" {self.max_pickle_size_gb}: pass the names of files, or raise it"
            )

"""PBS Professional and OpenPBS, through the package submitit-pbs."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from submitit_packs.directory import PackDirectory, tail
from submitit_packs.errors import BadSettings, NoAnswer, QueueFull, SubmissionRefused
from submitit_packs.model import Pack
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

try:
    from submitit_pbs import PBSExecutor, client
    from submitit_pbs.executor import job_script
    from submitit_pbs.reasons import NEVER_KNOWN, reason, waiting
    from submitit_pbs.script import PARAMETER_NAMES, Parameters
except ImportError:
    raise BadSettings("PBS needs the package submitit-pbs: pip install submitit-pbs") from None

KILLED = 271  # by TERM: deleted, or ended by a node that came back
ENDINGS = {
    "succeeded": Ending.DONE,
    "failed": Ending.DONE,
    "walltime": Ending.WALLTIME,
    "memory": Ending.MEMORY,
    "cpu_time": Ending.WALLTIME,
    "cancelled": Ending.CANCELLED,
    "preempted": Ending.PREEMPTED,
    "node_lost": Ending.NODE_LOST,
    "held": Ending.NOT_STARTED,
    "not_started": Ending.NOT_STARTED,
    "vanished": Ending.NOT_STARTED,
    "unknown": Ending.DONE,
}


class PBS(Scheduler):
    """submitit's `pbs` cluster."""

    name = "pbs"
    parameters = frozenset(PARAMETER_NAMES)

    def __init__(self, account: str | None = None) -> None:
        self.account = account

    def submit(self, pack: Pack, directory: PackDirectory) -> str:
        """Submit with qsub."""
        try:
            executor = PBSExecutor(make_folder(directory))
            executor.update_parameters(**self._parameters(pack))
            return str(executor._submit_command(pilot_command(directory)).job_id)
        except client.QueueFull as error:
            raise QueueFull(error.message) from None
        except client.ServerUnreachable as error:
            raise NoAnswer(error.message) from None
        except client.PBSError as error:
            raise SubmissionRefused(error.message) from None
        except (RuntimeError, ValueError) as error:
            raise BadSettings(str(error)) from None

    def script(self, pack: Pack, directory: PackDirectory) -> str:
        """The file that qsub is given."""
        try:
            parameters = Parameters(**self._parameters(pack))
        except (TypeError, ValueError) as error:
            raise BadSettings(str(error)) from None
        return str(job_script(parameters, pilot_command(directory), folder(directory)))

    def _parameters(self, pack: Pack) -> dict[str, Any]:
        options = options_of(pack, self.name)
        setup = [*options.pop("setup", ()), *pack.setup]
        return {
            "job_name": pack.id,
            "queue": pack.queue or None,
            "account": self.account,
            "walltime": pack.walltime_s / 60,
            "nodes": pack.nodes,
            "signal_delay_s": 0,  # the pilot keeps its own time
            "stderr_to_stdout": True,
            "setup": setup,
            **options,
        }

    def status(self, jobs: Mapping[str, str]) -> dict[str, JobStatus]:
        """One qstat for all jobs."""
        try:
            statuses = client.status(jobs.values())
        except client.PBSError as error:
            raise NoAnswer(error.message) from None
        unknown = JobStatus(Phase.UNKNOWN, words=NEVER_KNOWN.words)
        return {
            p: status_of(statuses[job]) if job in statuses else unknown for p, job in jobs.items()
        }

    def find(self, packs: Iterable[str]) -> dict[str, str]:
        """Jobs by their names, ended ones included: two commands however many packs."""
        try:
            jobs = client.find_by_name(*packs)
        except client.PBSError as error:
            raise NoAnswer(error.message) from None
        return {pack: ids[-1] for pack, ids in jobs.items()}

    def cancel(self, job_ids: Iterable[str]) -> None:
        """One qdel."""
        try:
            client.cancel(job_ids)
        except client.PBSError as error:
            raise NoAnswer(error.message) from None


def output_of(found: Any) -> str:
    """The end of the file in which PBS notes why it killed a job."""
    directory = Path(found.attributes.get("Output_Path", "").partition(":")[2])
    return tail(directory / f"{found.id}.{found.attributes.get('server', '')}.OU", 5)


def status_of(found: Any) -> JobStatus:
    """The status of what qstat says of a job."""
    nodes = tuple(found.hosts)
    if why := reason(found, output_of(found) if found.exit_status == KILLED else ""):
        phase = Phase.ENDED if found.is_finished else Phase.QUEUED  # held after failed starts
        return JobStatus(phase, ENDINGS[str(why.ending)], why.words, nodes)
    if found.is_running:
        return JobStatus(Phase.RUNNING, nodes=nodes)
    return JobStatus(Phase.QUEUED, words=waiting(found))

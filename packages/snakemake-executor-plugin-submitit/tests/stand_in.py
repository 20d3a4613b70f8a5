"""A batch system in memory, whose jobs do as they are told; a controller may die anywhere."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from submitit_packs.directory import PackDirectory, Result, Start, State
from submitit_packs.errors import NoAnswer, PackError
from submitit_packs.model import Pack
from submitit_packs.schedulers import Ending, JobStatus, Phase, Scheduler


class Killed(BaseException):
    """The controller is killed here: nothing may catch it."""


@dataclass
class Job:
    """A job of the stand-in."""

    pack: Pack
    directory: PackDirectory
    status: JobStatus = field(default_factory=lambda: JobStatus(Phase.QUEUED))


class StandIn(Scheduler):
    """It outlives controllers. `submit` may die before the job is there, or after."""

    name = "stand-in"

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.began: Counter[str] = Counter()
        self.is_down = False
        self.refuses: PackError | None = None
        self.dies = ""
        self.unknown = ""  # what it says of a job that it does not know
        self.calls: Counter[str] = Counter()

    def _call(self, name: str) -> None:
        self.calls[name] += 1
        if self.is_down:
            raise NoAnswer("connection refused")

    def submit(self, pack: Pack, directory: PackDirectory) -> str:
        self._call("submit")
        if self.dies == "before":
            raise Killed
        if self.refuses:
            raise self.refuses
        job_id = str(len(self.jobs) + 1)
        self.jobs[job_id] = Job(pack, directory)
        if self.dies == "after":
            raise Killed
        return job_id

    def script(self, pack: Pack, directory: PackDirectory) -> str:
        return f"run {pack.id}"

    def status(self, jobs: Mapping[str, str]) -> dict[str, JobStatus]:
        self._call("status")
        unknown = JobStatus(Phase.UNKNOWN, words=self.unknown)
        return {p: self.jobs[j].status if j in self.jobs else unknown for p, j in jobs.items()}

    def find(self, packs: Iterable[str]) -> dict[str, str]:
        self._call("find")
        wanted = set(packs)
        return {job.pack.id: id_ for id_, job in self.jobs.items() if job.pack.id in wanted}

    def cancel(self, job_ids: Iterable[str]) -> None:
        self._call("cancel")
        for job_id in job_ids:
            self.end(job_id, Ending.CANCELLED, "cancelled by ada")

    # ------------------------------------------------------------------ what happens to jobs

    def live(self) -> list[str]:
        """The jobs that are not over."""
        return [i for i, job in self.jobs.items() if job.status.phase != Phase.ENDED]

    def run(
        self,
        job_id: str,
        states: Mapping[str, State | None] | None = None,
        skipped: Iterable[str] = (),
    ) -> None:
        """Run a job: its members end in these states, by default well; of None nothing is left.

        Members in `skipped` are not begun.
        """
        job = self.jobs[job_id]
        attempt = job.directory.begin_attempt()
        job.status = JobStatus(Phase.RUNNING, nodes=("n1",))
        for member in (m for m in job.pack.members if m.key not in set(skipped)):
            before = job.directory.result(member.key)
            if before and before.is_final:
                continue
            self.began[member.key] += 1
            job.directory.write_start(member.key, Start("n1", "0", (), 1.0, attempt))
            if state := (states or {}).get(member.key, State.OK):
                code = 0 if state == State.OK else 1
                result = Result(state, code, "n1", "0", (), 1.0, 2.0, attempt, f"was {state}")
                job.directory.write_result(member.key, result)

    def end(self, job_id: str, ending: Ending = Ending.DONE, words: str = "completed") -> None:
        """End a job."""
        job = self.jobs[job_id]
        if job.status.phase != Phase.ENDED:
            job.status = JobStatus(Phase.ENDED, ending, words, ("n1",))

    def forget(self, job_id: str) -> None:
        """Let the batch system no longer know a job."""
        del self.jobs[job_id]

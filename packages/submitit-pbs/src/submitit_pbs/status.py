"""The status of jobs as `qstat -f` prints it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

SEPARATOR = "\x1f"  # between the attributes of a job: a character that no attribute contains

_CONTINUATION = "\n\t"  # `qstat -f` without `-F dsv` folds long values


@dataclass(frozen=True)
class JobStatus:
    """Status of a job, sub-job or job array in PBS.

    Attributes
    ----------
    id
        without the server's name: `87`; of an array `87[]`, of its third sub-job `87[2]`
    attributes
        every attribute as `qstat -f` prints it, e.g. `Resource_List.walltime`
    """

    id: str
    attributes: Mapping[str, str]

    @property
    def state(self) -> str:
        """PBS's letter: Q, H, W, T, M, R, B (an array that has begun), S, U, E, F or X."""
        return self.attributes.get("job_state", "")

    @property
    def is_finished(self) -> bool:
        """True if PBS has finished with the job; X is a finished sub-job of an unfinished array."""
        return self.state in ("F", "X")

    @property
    def is_running(self) -> bool:
        """True if the job is on nodes (running, or ending)."""
        return self.state in ("R", "E")

    @property
    def exit_status(self) -> int | None:
        """PBS's Exit_status: above 256 a signal, below 0 a code of PBS's; None without a status.

        A requeued job keeps the status of its last run: look at `state` first.
        """
        text = self.attributes.get("Exit_status", "")
        return int(text) if re.fullmatch(r"-?\d+", text) else None

    @property
    def comment(self) -> str:
        """The scheduler's comment: why the job waits, where it runs, how it ended."""
        return self.attributes.get("comment", "")

    @property
    def name(self) -> str:
        """The job's name (`qsub -N`)."""
        return self.attributes.get("Job_Name", "")

    @property
    def queue(self) -> str:
        """The queue that the job is in; routing queues pass a job on."""
        return self.attributes.get("queue", "")

    @property
    def run_count(self) -> int:
        """Number of starts of the job by PBS."""
        text = self.attributes.get("run_count", "")
        return int(text) if text.isdigit() else 0

    @property
    def hosts(self) -> tuple[str, ...]:
        """The nodes that the job runs or ran on, first the one that runs its script."""
        chunks = self.attributes.get("exec_host", "").split("+")
        return tuple(dict.fromkeys(chunk.split("/")[0] for chunk in chunks if chunk))

    @property
    def walltime_s(self) -> int | None:
        """The walltime requested, in seconds."""
        return _seconds(self.attributes.get("Resource_List.walltime", ""))

    @property
    def used_walltime_s(self) -> int | None:
        """The walltime used by the present or last run, in seconds, as of PBS's last poll."""
        return _seconds(self.attributes.get("resources_used.walltime", ""))

    @property
    def started_at(self) -> float | None:
        """Start of the present or last run, in seconds since the epoch."""
        try:
            started = datetime.strptime(self.attributes.get("stime", ""), "%a %b %d %H:%M:%S %Y")
        except ValueError:
            return None
        return started.timestamp()


def parse_qstat(text: str) -> dict[str, JobStatus]:
    """The jobs in an answer of `qstat -f`, by id.

    Both forms are read: `-F dsv -D SEPARATOR`, one line a job, and the plain one, one line an
    attribute. What is neither is left out.
    """
    jobs: dict[str, JobStatus] = {}
    for record in re.split(r"^(?=Job Id: )", text, flags=re.MULTILINE):
        heading, *fields = _fields(record)
        match = re.match(r"Job Id: (\d+(?:\[\d*\])?)", heading)
        if match:
            pairs = (re.split(r"\s*=\s*", field, maxsplit=1) for field in fields if "=" in field)
            jobs[match[1]] = JobStatus(match[1], {name.strip(): text for name, text in pairs})
    return jobs


def _fields(record: str) -> Iterator[str]:
    if SEPARATOR in record:
        yield from record.rstrip("\n").split(SEPARATOR)
    else:
        yield from record.replace(_CONTINUATION, "").split("\n")


def _seconds(duration: str) -> int | None:
    """`HH:MM:SS` or plain seconds."""
    if not re.fullmatch(r"\d+(:\d+){0,2}", duration):
        return None
    seconds = 0
    for part in duration.split(":"):
        seconds = 60 * seconds + int(part)
    return seconds

"""A pack's directory: the only truth between controller, allocation and restart.

    plan.json       the pack, written before it is submitted
    job.json        the job that runs it, written after, and whether it waits to run again
    attempt.json    which run of the job is current (a requeued job runs again), and whether to stop
    pilot-N.json    what the pilot of attempt N saw
    KEY.run         written when a member starts: where
    KEY.rc          written when it ends: how
    KEY.log         its output

Every file is written to a temporary name, synchronised and renamed, so that a reader sees all of
it or nothing. A writer whose attempt is not the current one writes no result.
"""

import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Self, TypeVar

from submitit_packs.model import Pack

PLAN, JOB, ATTEMPT = "plan.json", "job.json", "attempt.json"
STARTED, RESULT, LOG = ".run", ".rc", ".log"
CLOSED = "its job is over"  # why the members of a closed pack end
MOST_LINES, LONGEST_LINE = 20, 300  # of an output, where its last line is looked for
T = TypeVar("T")


class State(StrEnum):
    """End of a member."""

    OK = "ok"
    FAILED = "failed"
    TIMEOUT = "timeout"
    DEFERRED = "deferred"  # not begun: too little time was left
    KILLED = "killed"  # ended with its pack, through no fault of its own


FINAL = frozenset({State.OK, State.FAILED, State.TIMEOUT})


@dataclass(frozen=True)
class Start:
    """Place of a member's run; `gpu` as in CUDA_VISIBLE_DEVICES, times in seconds since 1970."""

    host: str
    gpu: str
    gpu_uuids: tuple[str, ...]
    start_s: float
    attempt: int

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Self:
        """Read what `asdict` made."""
        return cls(**{**plain, "gpu_uuids": tuple(plain["gpu_uuids"])})


@dataclass(frozen=True)
class Result:
    """Result of a member; `exit_code` is None if it was not begun, negative for a signal.

    `said` is the last line of the output of one that failed.
    """

    state: State
    exit_code: int | None
    host: str
    gpu: str
    gpu_uuids: tuple[str, ...]
    start_s: float
    end_s: float
    attempt: int
    reason: str = ""
    said: str = ""

    @property
    def why(self) -> str:
        """The reason, and what a member that failed said last."""
        return ": ".join(filter(None, (self.reason, self.said)))

    @property
    def is_final(self) -> bool:
        """True if the member must not run again."""
        return self.state in FINAL

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Self:
        """Read what `asdict` made."""
        return cls(
            **{**plain, "state": State(plain["state"]), "gpu_uuids": tuple(plain["gpu_uuids"])}
        )


@dataclass(frozen=True)
class Attempt:
    """Current run of the pack's job; members of another run end without a result."""

    number: int = 0
    stop: str = ""  # why running members shall end; empty if they shall not
    host: str = ""  # where its pilot runs


class PackDirectory:
    """Files of a pack; absent and damaged files are read as None."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def id(self) -> str:
        """The pack's id, which is also the name of its job."""
        return self.path.name

    # ------------------------------------------------------------------ plan and job

    def write_plan(self, pack: Pack) -> None:
        """Write plan.json; the directory is made."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.path / PLAN, pack.as_json())

    def plan(self) -> Pack | None:
        """The pack; None if it was not planned to the end."""
        return read_as(Pack.from_json, self.path / PLAN)

    @property
    def planned_s(self) -> float:
        """Time of the pack's plan, in seconds since 1970; 0 without a plan."""
        try:
            return (self.path / PLAN).stat().st_mtime
        except OSError:
            return 0.0

    def write_job(self, job: dict[str, Any]) -> None:
        """Write job.json."""
        write_json(self.path / JOB, job)

    def job(self) -> dict[str, Any] | None:
        """The job: `cluster`, `job_id`, `submitted_s`, and `requeued` while it waits again."""
        job = read_as(dict[str, Any], self.path / JOB)
        return job if job and "job_id" in job else None

    def note_requeue(self, now_s: float | None) -> bool:
        """Say that the job waits once more since then, or no longer; whether it ever ran.

        Its latest attempt is named: what a later one does is not that of a job that waits.
        """
        attempt, job = self.attempt().number, self.job()
        if not attempt or job is None:
            return False
        requeued = None if now_s is None else {"attempt": attempt, "since_s": now_s}
        self.write_job(job | {"requeued": requeued})
        return True

    # ------------------------------------------------------------------ attempts

    def attempt(self) -> Attempt:
        """The current attempt; number 0 before the first."""
        return read_as(lambda plain: Attempt(**plain), self.path / ATTEMPT) or Attempt()

    def begin_attempt(self, host: str = "") -> int:
        """Begin the next attempt: whatever runs of the one before ends, and writes nothing."""
        number = self.attempt().number + 1
        write_json(self.path / ATTEMPT, asdict(Attempt(number, host=host)))
        return number

    def stop(self, number: int, why: str) -> None:
        """End the members of an attempt, if it is the current one."""
        current = self.attempt()
        if current.number == number and not current.stop:
            write_json(self.path / ATTEMPT, asdict(replace(current, stop=why)))

    def close(self) -> None:
        """Let nothing that may still run write a result: the pack's job is over."""
        self.stop(self.begin_attempt(), CLOSED)

    @property
    def is_closed(self) -> bool:
        """True if the controller has decided about the remaining members of the pack."""
        return self.attempt().stop == CLOSED

    # ------------------------------------------------------------------ members

    def log(self, key: str) -> Path:
        """A member's output."""
        return self.path / f"{key}{LOG}"

    def write_start(self, key: str, start: Start) -> None:
        """Say that a member starts."""
        write_json(self.path / f"{key}{STARTED}", asdict(start))

    def start(self, key: str) -> Start | None:
        """Place of a member's run; None if it was not begun."""
        return read_as(Start.from_json, self.path / f"{key}{STARTED}")

    def write_result(self, key: str, result: Result) -> bool:
        """Say how a member ended, unless its attempt is over; tell whether it was written."""
        if self.attempt().number != result.attempt:
            return False
        write_json(self.path / f"{key}{RESULT}", asdict(result))
        return True

    def result(self, key: str) -> Result | None:
        """Result of a member; None if it has not ended."""
        return read_as(Result.from_json, self.path / f"{key}{RESULT}")

    def keys(self, suffix: str = RESULT) -> Iterator[str]:
        """The members that have a file with this suffix: one metadata operation."""
        try:
            names = os.listdir(self.path)
        except OSError:
            return
        yield from (n.removesuffix(suffix) for n in names if n.endswith(suffix))

    def last_lines(self, key: str, count: int = 5) -> str:
        """The end of a member's output."""
        return tail(self.log(key), count)


def last_line(paths: Iterable[Path]) -> str:
    """The last line of text in the file that was written last; empty if none can be read."""
    existing = [path for path in paths if path.is_file()]
    for path in sorted(existing, key=os.path.getmtime, reverse=True):
        if lines := tail(path, MOST_LINES).split("\n"):
            for line in filter(None, map(str.strip, reversed(lines))):
                return line[:LONGEST_LINE]
    return ""


def tail(path: Path, count: int, longest_bytes: int = 4096) -> str:
    """The last lines of a text file; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - longest_bytes))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-count:])
    except OSError:
        return ""


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file so that a reader on any node sees all of it or nothing."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(value, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_as(make: Callable[[Any], T], path: Path) -> T | None:
    """Result of `make` for a JSON file; None if the file is absent or damaged."""
    try:
        return make(read_json(path))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def read_json(path: Path) -> Any:
    """The value of a JSON file; None if it is absent or not JSON."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None

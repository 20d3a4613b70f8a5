"""A pack's directory: the only truth between controller, allocation and restart.

    plan.json       the pack, written before it is submitted
    job.json        the job that runs it, written after
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
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from submitit_packs.model import Pack

PLAN, JOB, ATTEMPT = "plan.json", "job.json", "attempt.json"
STARTED, RESULT, LOG = ".run", ".rc", ".log"


class State(StrEnum):
    """How a member ended."""

    OK = "ok"
    FAILED = "failed"
    TIMEOUT = "timeout"
    DEFERRED = "deferred"  # not begun: too little time was left
    KILLED = "killed"  # ended with its pack, through no fault of its own


FINAL = frozenset({State.OK, State.FAILED, State.TIMEOUT})


@dataclass(frozen=True)
class Start:
    """Where a member runs; `gpu` as in CUDA_VISIBLE_DEVICES, times in seconds since 1970."""

    host: str
    gpu: str
    gpu_uuids: tuple[str, ...]
    start_s: float
    attempt: int


@dataclass(frozen=True)
class Result:
    """How a member ended; `exit_code` is None if it was not begun, negative for a signal."""

    state: State
    exit_code: int | None
    host: str
    gpu: str
    gpu_uuids: tuple[str, ...]
    start_s: float
    end_s: float
    attempt: int
    reason: str = ""

    @property
    def is_final(self) -> bool:
        """Whether it must not run again."""
        return self.state in FINAL

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Self:
        """Read what `asdict` made."""
        return cls(
            **{**plain, "state": State(plain["state"]), "gpu_uuids": tuple(plain["gpu_uuids"])}
        )


@dataclass(frozen=True)
class Attempt:
    """Which run of the pack's job is current; members of another one end without a result."""

    number: int = 0
    stop: str = ""  # why running members shall end; empty if they shall not


class PackDirectory:
    """A pack's files. Reading what is absent or damaged gives None."""

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
        plain = read_json(self.path / PLAN)
        return Pack.from_json(plain) if plain else None

    def write_job(self, job: dict[str, Any]) -> None:
        """Write job.json."""
        write_json(self.path / JOB, job)

    def job(self) -> dict[str, Any] | None:
        """The job: `cluster`, `job_id`, `submitted_s`."""
        found: dict[str, Any] | None = read_json(self.path / JOB)
        return found

    # ------------------------------------------------------------------ attempts

    def attempt(self) -> Attempt:
        """The current attempt; number 0 before the first."""
        plain = read_json(self.path / ATTEMPT)
        return Attempt(**plain) if plain else Attempt()

    def begin_attempt(self) -> int:
        """Begin the next attempt: whatever runs of the one before ends, and writes nothing."""
        number = self.attempt().number + 1
        write_json(self.path / ATTEMPT, asdict(Attempt(number)))
        return number

    def stop(self, number: int, why: str) -> None:
        """End the members of an attempt, if it is the current one."""
        if self.attempt() == Attempt(number):
            write_json(self.path / ATTEMPT, asdict(Attempt(number, why)))

    def close(self) -> None:
        """Let nothing that may still run write a result: the pack's job is over."""
        self.stop(self.begin_attempt(), "its job is over")

    # ------------------------------------------------------------------ members

    def log(self, key: str) -> Path:
        """A member's output."""
        return self.path / f"{key}{LOG}"

    def write_start(self, key: str, start: Start) -> None:
        """Say that a member starts."""
        write_json(self.path / f"{key}{STARTED}", asdict(start))

    def start(self, key: str) -> Start | None:
        """Where a member runs or ran; None if it was not begun."""
        plain = read_json(self.path / f"{key}{STARTED}")
        return Start(**{**plain, "gpu_uuids": tuple(plain["gpu_uuids"])}) if plain else None

    def write_result(self, key: str, result: Result) -> bool:
        """Say how a member ended, unless its attempt is over; tell whether it was written."""
        if self.attempt().number != result.attempt:
            return False
        write_json(self.path / f"{key}{RESULT}", asdict(result))
        return True

    def result(self, key: str) -> Result | None:
        """How a member ended; None if it has not."""
        plain = read_json(self.path / f"{key}{RESULT}")
        return Result.from_json(plain) if plain else None

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


def read_json(path: Path) -> Any:
    """The value of a JSON file; None if it is absent or not JSON."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None

"""Interface of batch systems."""

import shlex
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from submitit_packs.directory import PackDirectory
from submitit_packs.model import Pack

FOLDER = "submitit"  # in a pack's directory: the job's script and output


class Phase(StrEnum):
    """Phase of a job."""

    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"
    UNKNOWN = "unknown"  # the batch system answers, and does not know the job


class Ending(StrEnum):
    """End of a job."""

    DONE = "done"  # its script ended by itself
    WALLTIME = "walltime"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    NODE_LOST = "node lost"
    NOT_STARTED = "not started"  # the batch system gave up starting it
    MEMORY = "memory"


@dataclass(frozen=True)
class JobStatus:
    """Status of a job in the batch system: `words` for people, and its nodes."""

    phase: Phase
    ending: Ending | None = None
    words: str = ""
    nodes: tuple[str, ...] = ()


class Scheduler(ABC):
    """A batch system. Each method is one command; NoAnswer is raised if it does not answer.

    `parameters` are those of submitit's for it.
    """

    name: str
    parameters: frozenset[str] = frozenset()

    @abstractmethod
    def submit(self, pack: Pack, directory: PackDirectory) -> str:
        """Submit a pack as a job of its name; the job's id.

        SubmissionRefused and QueueFull have the batch system's words.
        """

    @abstractmethod
    def script(self, pack: Pack, directory: PackDirectory) -> str:
        """The job script that `submit` would submit, byte for byte."""

    @abstractmethod
    def status(self, jobs: Mapping[str, str]) -> dict[str, JobStatus]:
        """The status of jobs, by pack: from {pack: job id}."""

    @abstractmethod
    def find(self, packs: Iterable[str]) -> dict[str, str]:
        """The jobs that have these packs' names: {pack: job id}."""

    @abstractmethod
    def cancel(self, job_ids: Iterable[str]) -> None:
        """Cancel jobs; those that have ended are ignored."""


def pilot_command(directory: PackDirectory) -> str:
    """The command of a pack's job."""
    python, path = shlex.quote(sys.executable), shlex.quote(str(directory.path.absolute()))
    return f"exec {python} -u -m submitit_packs.pilot {path}"


def folder(directory: PackDirectory) -> Path:
    """Directory of submitit's script and output of a job: absolute, since jobs start elsewhere."""
    return directory.path.absolute() / FOLDER


def make_folder(directory: PackDirectory) -> Path:
    """Make that folder: a batch system writes to it before submitit does."""
    path = folder(directory)
    path.mkdir(parents=True, exist_ok=True)
    return path


def options_of(pack: Pack, cluster: str) -> dict[str, Any]:
    """The pack's options for a cluster, without its name before theirs."""
    prefix = f"{cluster}_"
    return {k.removeprefix(prefix): v for k, v in pack.options.items() if k.startswith(prefix)}

"""Questions to vLLM's planner, which a process of its own answers, and the answers."""

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from kvscope.api.errors import BadInput, CannotWrite
from kvscope.api.files import files
from kvscope.api.machine import machine, processes
from kvscope.api.models import kv_bytes
from kvscope_model.capacity import planned_node
from kvscope_model.capacity.checkpoint import Checkpoint
from kvscope_model.capacity.gpus import Gpu
from kvscope_model.capacity.variants import MOST_TIMES

PROCESS = "kvscope_model.capacity.process"
SOURCES = ("kvscope_model", "kvscope_rehearsal", "kvscope.engine")  # of a plan
# As vLLM needs them to start in one process without a network; what else is set stays.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",
}


@dataclass(frozen=True)
class Question:
    """A plan that is asked for; with `advise`, settings that give more room are planned, too.

    `memory_bytes` is what the KV cache of a rank has; None leaves it to the GPU. `gpu` is None for
    the plan of this machine's CPU. `checkpoint` has the weights, if its files are there.
    """

    name: str
    config: Mapping[str, Any]
    arguments: Sequence[str]
    lengths: Sequence[int]
    advise: bool
    memory_bytes: int | None
    gpu: Gpu | None
    gpus: int = 1
    kv_heads: int | None = None
    checkpoint: Checkpoint | None = None

    def as_json(self) -> dict[str, Any]:
        """The question as the process reads it."""
        gpu = self.gpu.model_dump() if self.gpu else None
        config = json.dumps(dict(self.config))  # which may hold Infinity, as some published ones
        return asdict(self) | {"config": config, "gpu": gpu}


@dataclass(frozen=True)
class Variant:
    """Another setting, with which the server starts, and the requests of `tokens` at once then."""

    setting: str
    tokens: int
    requests: int


@dataclass(frozen=True)
class Answer:
    """vLLM's plan, where the memory of a rank goes, and what was left out to make the plan.

    `refused` is why a server with the arguments does not start; the plan is then for the longest
    requests that fit, and has no blocks if there is no memory for any.
    """

    plan: kv_bytes.KvPlan
    memory: Mapping[str, Any]
    notes: Sequence[str]
    refused: str | None = None
    variants: Sequence[Variant] = ()

    @property
    def vllm(self) -> str:
        """The version of the vLLM that planned."""
        installed = machine.installed_vllm()
        return installed[1] if installed else "of an unknown version"


ANSWER = TypeAdapter(Answer)


def ask(question: Question) -> Answer:
    """The answer, from the cache of earlier ones if nothing has changed; BadInput as vLLM's."""
    return ask_all([question])[0]()


def ask_all(questions: Sequence[Question]) -> list[Callable[[], Answer]]:
    """The answers to questions about one kind of GPU; each call gives one, or raises BadInput.

    A new process answers those that are not in the cache of earlier ones.
    """
    asked = [question.as_json() for question in questions]
    kept = [_directory() / f"{_digest(one)}.json" for one in asked]
    answers = [_kept(file) for file in kept]
    if missing := [n for n, answer in enumerate(answers) if answer is None]:
        made = _answered([asked[n] for n in missing], questions[missing[0]])
        for n, answer in zip(missing, made, strict=True):
            answers[n] = answer
            if "unplannable" not in answer:
                _keep(kept[n], answer)
    return [partial(_given, answer or {}) for answer in answers]


def _keep(file: Path, answer: Mapping[str, Any]) -> None:
    """Keep an answer for later; where that cannot be, say so and go on with it."""
    try:
        files.make_directory(file.parent)
        files.write_json(file, dict(answer))
    except CannotWrite as error:
        print(f"the plan is not kept: {error}", file=sys.stderr)


def _kept(file: Path) -> dict[str, Any] | None:
    """An earlier answer; None if there is none, or none that can be read."""
    try:
        answer: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        ANSWER.validate_python(answer)
    except (OSError, ValueError):
        return None
    return answer


def _given(answer: Mapping[str, Any]) -> Answer:
    if "unplannable" in answer:
        raise BadInput(answer["unplannable"])
    return ANSWER.validate_python(answer)


def _answered(asked: Sequence[Mapping[str, Any]], question: Question) -> list[dict[str, Any]]:
    """Ask a new process; where it ends without an answer, that is the end of its log."""
    with (
        processes.exit_on_signals(),
        tempfile.TemporaryDirectory(prefix="kvscope-bytes-") as directory,
    ):
        place = Path(directory)
        places = [place / str(n) for n in range(len(asked))]
        for own, one in zip(places, asked, strict=True):
            files.make_directory(own)
            files.write_json(own / "question.json", dict(one))
        environment = {**os.environ, **ENVIRONMENT}
        environment.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")
        if question.gpu:
            most = question.gpus * (MOST_TIMES if question.advise else 1)
            environment = planned_node.environment(place / "node", question.gpu, most, environment)
        with (place / "log").open("w+b") as log:
            processes.run(
                [sys.executable, "-m", PROCESS, *map(str, places)],
                env=environment,
                stdout=log,
                stderr=log,
                check=False,
            )
        lines = (place / "log").read_text("utf-8", "replace").strip().splitlines()
        last = lines[-1] if lines else "its process wrote nothing"
        failed = {"unplannable": f"{question.name}: vLLM's planning ended early: {last:.300}"}
        return [_read(own / "answer.json") or failed for own in places]


def _read(file: Path) -> dict[str, Any] | None:
    try:
        answer: dict[str, Any] = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return answer


def _directory() -> Path:
    """Where answers are kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "kvscope" / "plans"


def _digest(asked: Mapping[str, Any]) -> str:
    """SHA-256 of a question and of the code that answers it."""
    digest = hashlib.sha256(json.dumps([asked, machine.installed_vllm()]).encode())
    for package in SOURCES:
        spec = find_spec(package)
        origin = spec.origin if spec else None
        for file in sorted(Path(origin).parent.rglob("*.py")) if origin else ():
            digest.update(file.read_bytes())
    return digest.hexdigest()

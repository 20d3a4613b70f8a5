"""The process that plans: `python -m kvscope_model.capacity.process DIRECTORY…`.

It reads question.json in each directory and writes answer.json there. vLLM takes the platform of
the environment: the CPU's, or that of GPUs that are not there (`kvscope_rehearsal`).
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvscope.api.errors import BadInput
from kvscope.api.files import files
from kvscope.api.models import kv_bytes
from kvscope_model.capacity import operators, published
from kvscope_model.capacity.gpus import Gpu
from kvscope_model.capacity.memory import Budget
from kvscope_model.capacity.request import ANSWER, Answer, Variant

FITTED = "--max-model-len=auto"
TOO_LITTLE = "--memory"  # in kvscope's sentence of a KV cache that holds no request


def main(directories: Sequence[Path]) -> None:
    """Answer the question in each directory, of one kind of GPU."""
    for directory in directories:
        _answer_in(directory)


def _answer_in(directory: Path) -> None:
    asked = json.loads((directory / "question.json").read_text("utf-8"))
    try:
        answer = ANSWER.dump_python(Planning(directory, asked).answer(), mode="json")
    except BadInput as error:
        answer = {"unplannable": str(error)}
    files.write_json(directory / "answer.json", answer)


@dataclass
class Planning:
    """Plans for a question; `directory` is where vLLM finds config.json."""

    directory: Path
    asked: dict[str, Any]

    def __post_init__(self) -> None:
        self.gpu = Gpu.model_validate(self.asked["gpu"]) if self.asked["gpu"] else None
        if self.gpu:
            operators.complete()

    def answer(self) -> Answer:
        """The answer; BadInput if there is no plan."""
        config = json.loads(self.asked["config"])
        refusals: list[BadInput] = []
        for attempt in published.attempts(config, self.asked["arguments"]):
            files.write_text(self.directory / "config.json", json.dumps(attempt.config))
            try:
                return self._answer(attempt)
            except BadInput as error:
                refusals.append(error)
        raise refusals[0]

    def _answer(self, attempt: published.Attempt) -> Answer:
        refused = None
        arguments = attempt.arguments
        try:
            plan, memory = self._plan(arguments, self.asked["lengths"])
        except BadInput as error:
            if TOO_LITTLE not in str(error):
                raise
            refused = str(error)
            arguments = [word for word in arguments if not word.startswith("--max-model-len")]
            arguments.append(FITTED)
            try:
                plan, memory = self._plan(arguments, self.asked["lengths"])
            except BadInput:
                raise error from None
        variants = [*self._variants(arguments)]
        return Answer(plan, memory, attempt.notes, refused, variants)

    def _variants(self, arguments: list[str]) -> Iterator[Variant]:
        """What the variants give requests of the longest length."""
        length = max(self.asked["lengths"])
        for setting in self.asked["variants"]:
            name, _, value = setting.partition("=")
            varied = [*arguments, f"--{name.replace('_', '-')}={value}"]
            try:
                plan, _memory = self._plan(varied, [length])
            except BadInput:
                continue
            if held := plan.held[0]:
                yield Variant(setting, length, plan.requests(held))

    def _plan(
        self, arguments: list[str], lengths: list[int]
    ) -> tuple[kv_bytes.KvPlan, dict[str, Any]]:
        from kvscope.api.vllm import kv_planning

        budget = Budget(self.gpu, self.asked["memory_bytes"])
        name = self.asked["name"]
        try:
            plan = kv_planning.plan(self.directory, name, budget.of_ranks, lengths, arguments)
        except BadInput:
            if self.gpu and (short := budget.shortage()):
                gpus = f"{self.asked['gpus']} × {self.gpu.name}"
                raise BadInput(f"{name} does not start on {gpus}: {short}") from None
            raise
        return plan, budget.as_json()


if __name__ == "__main__":
    main([*map(Path, sys.argv[1:])])

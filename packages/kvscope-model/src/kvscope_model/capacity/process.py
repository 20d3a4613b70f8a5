"""The process that plans: `python -m kvscope_model.capacity.process DIRECTORY…`.

It reads question.json in each directory and writes answer.json there. vLLM takes the platform of
the environment: the CPU's, or that of GPUs that are not there (`kvscope_rehearsal`).
"""

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvscope.api.errors import BadInput
from kvscope.api.files import files
from kvscope.api.models import kv_bytes
from kvscope_model.capacity import operators, published, variants
from kvscope_model.capacity.checkpoint import Checkpoint
from kvscope_model.capacity.gpus import Gpu
from kvscope_model.capacity.memory import Budget
from kvscope_model.capacity.request import ANSWER, Answer, Variant

LENGTH = "--max-model-len"
AMPLE = 40 * 2**30  # bytes of a KV cache, to plan blocks where there is none


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
    encoders: bool = False

    def __post_init__(self) -> None:
        self.gpu = Gpu.model_validate(self.asked["gpu"]) if self.asked["gpu"] else None
        files = self.asked["checkpoint"]
        self.checkpoint = Checkpoint(**files) if files else None
        if self.gpu:
            operators.complete()

    def answer(self) -> Answer:
        """The answer; BadInput if there is no plan."""
        config = json.loads(self.asked["config"])
        refusals: list[BadInput] = []
        for attempt in published.attempts(config, self.asked["arguments"]):
            files.write_text(self.directory / "config.json", json.dumps(attempt.config))
            self.encoders = attempt.encoders
            try:
                return self._answer(attempt)
            except BadInput as error:
                refusals.append(error)
        raise refusals[0]

    def _answer(self, attempt: published.Attempt) -> Answer:
        from kvscope.api.vllm import kv_planning

        budget = self._budget()
        try:
            plan, refused = self._plan(attempt.arguments, budget), None
        except kv_planning.NoRoom as error:
            plan, refused = self._without_room(attempt.arguments, budget), str(error)
            if not plan.blocks:
                refused = budget.shortage() or refused
        memory = budget.as_json()
        others = [*self._variants(attempt, plan, budget)] if self.asked["advise"] else []
        notes = [*attempt.notes, *memory.pop("notes")]
        if attempt.encoders and not memory["encoder_bytes"]:
            notes.append(published.WITHOUT_ENCODERS)
        return Answer(plan, memory, notes, refused, others)

    def _without_room(self, arguments: Sequence[str], budget: Budget) -> kv_bytes.KvPlan:
        """The plan for the longest requests that fit; one without blocks if none does."""
        from kvscope.api.vllm import kv_planning

        fitted = [*(word for word in arguments if not word.startswith(LENGTH)), f"{LENGTH}=auto"]
        with contextlib.suppress(kv_planning.NoRoom):
            return self._plan(fitted, budget)
        ample = Budget(None, self.gpu.memory_bytes if self.gpu else AMPLE)
        try:
            plan = self._plan(arguments, ample)
        except kv_planning.NoRoom:
            plan = self._plan(fitted, ample)
        ranks = tuple(replace(rank, memory_bytes=0, blocks=0) for rank in plan.ranks)
        return replace(
            plan, memory_bytes=0, blocks=0, capacity_tokens=0, max_concurrency=0, ranks=ranks
        )

    def _variants(
        self, attempt: published.Attempt, plan: kv_bytes.KvPlan, budget: Budget
    ) -> Iterator[Variant]:
        """Settings with which the server starts, and the requests of the longest length then."""
        arguments = attempt.arguments
        length = max((held.tokens for held in plan.held if held), default=0)
        of_gpu = self.asked["memory_bytes"] is None
        same = variants.flags(plan, arguments, self.asked["kv_heads"], of_gpu)
        if budget.shortage():
            same = variants.for_weights(plan, arguments, "quant" in str(attempt.config))
        for candidate in same:
            yield from self._variant(candidate, arguments, length)
        if not of_gpu:
            return
        least = max((rank.weight_bytes / rank.usable_bytes for rank in budget.ranks), default=0)
        for candidate in variants.more_gpus(self.asked["gpus"], arguments, least):
            if planned := [*self._variant(candidate, arguments, length)]:
                yield from planned
                return

    def _variant(
        self, candidate: variants.Candidate, arguments: Sequence[str], length: int
    ) -> Iterator[Variant]:
        try:
            plan = self._plan(candidate.arguments(arguments), self._budget(), [length])
        except BadInput:
            return
        if plan.refused is None and (held := plan.held[0]):
            yield Variant(candidate.setting, length, plan.requests(held))

    def _budget(self) -> Budget:
        return Budget(self.gpu, self.asked["memory_bytes"], checkpoint=self.checkpoint)

    def _plan(
        self, arguments: Sequence[str], budget: Budget, lengths: Sequence[int] = ()
    ) -> kv_bytes.KvPlan:
        from kvscope.api.vllm import kv_planning

        asked = lengths or self.asked["lengths"]
        return kv_planning.plan(
            self.directory, self.asked["name"], budget.of_ranks, asked, arguments, self.encoders
        )


if __name__ == "__main__":
    main([*map(Path, sys.argv[1:])])

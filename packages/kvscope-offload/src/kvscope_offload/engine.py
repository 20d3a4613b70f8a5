"""An engine: requests in, passes out, one batch after another by whatever policy keeps the context.

What a pass is, work on tensors or seconds of a cost model, is up to the subclass.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvscope.api.models import Model
from kvscope_offload.cost import CostModel
from kvscope_offload.generation import Generation, Length, Limits, rounds
from kvscope_offload.pipeline import Pass
from kvscope_offload.policy import OffloadPolicy
from kvscope_offload.simulation import Simulated, simulate
from kvscope_offload.split import Split
from kvscope_offload.timeline import Interval

Prompt = Sequence[int]


@dataclass(frozen=True)
class PassResult:
    """A pass, its requests by their numbers, and the token of each."""

    step: Pass
    requests: list[int]
    tokens: list[int]


class Engine(ABC):
    """A model, the policy that keeps its context, and what the machine's steps cost."""

    def __init__(
        self, model: Model, policy: OffloadPolicy, cost: CostModel, block_size: int
    ) -> None:
        self.model, self.policy, self.cost, self.block_size = model, policy, cost, block_size
        self.generation: Generation | None = None  # of the batch under way, or of the last one
        self._splits: dict[tuple[Length, ...], Split] = {}

    def stream(
        self,
        prompts: Sequence[Prompt],
        output_tokens: Sequence[int],
        limits: Limits | None = None,
    ) -> Iterator[PassResult]:
        """The passes that generate these requests, one batch within the limits after another."""
        lengths = [Length(len(p), n) for p, n in zip(prompts, output_tokens, strict=True)]
        sizes, layers = self.cost.sizes, self.model.layers
        batches = rounds(self.policy, sizes, layers, self.block_size, lengths, limits or Limits())
        for numbers in batches:
            self.generation = self.lay_out([lengths[i] for i in numbers])
            for step, tokens in self.compute(self.generation, [prompts[i] for i in numbers]):
                yield PassResult(step, [numbers[row.index] for row in step.rows], tokens)

    def lay_out(self, lengths: list[Length]) -> Generation:
        """A batch before its first pass; the split for the same lengths is chosen once."""
        split = self._splits.get(tuple(lengths))
        layers, size = self.model.layers, self.block_size
        generation = Generation(self.policy, self.cost, layers, size, lengths, known=split)
        self._splits[tuple(lengths)] = generation.split
        return generation

    @abstractmethod
    def compute(
        self, generation: Generation, prompts: list[Prompt]
    ) -> Iterator[tuple[Pass, list[int]]]:
        """The passes of one batch, and the token of each of their rows."""

    def simulated(self, lengths: list[Length]) -> Simulated:
        """Prediction of the cost model for a batch."""
        return simulate(self.lay_out(lengths))

    def measured(self) -> list[Interval]:
        """Spans of the lanes since this was last read; none where nothing is measured."""
        return []

    @abstractmethod
    def close(self) -> None:
        """End what the engine has started."""

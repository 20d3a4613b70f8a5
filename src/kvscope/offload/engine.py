"""The engine: prompts in, tokens out, by whatever policy keeps the context."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from kvscope.offload.architecture import architecture
from kvscope.offload.cost import CostModel
from kvscope.offload.generation import Generation, Length, rounds
from kvscope.offload.lanes import RealLanes
from kvscope.offload.pipeline import Pass, run
from kvscope.offload.policy import OffloadPolicy
from kvscope.offload.profile import profile
from kvscope.offload.split import Split
from kvscope.offload.tensor_work import TensorWork
from kvscope.offload.timeline import Interval
from kvscope.offload.weights import Source, Weights, seeded
from kvscope.plan.models import Model


@dataclass(frozen=True)
class PassTime:
    """When a pass ran, in seconds of the host's clock, and over which requests."""

    step: Pass
    requests: list[int]  # those of the generation's numbers 0, 1, …
    start_s: float
    end_s: float


@dataclass
class Generated:
    """What came out, and what it took."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    passes: list[PassTime] = field(default_factory=list)
    intervals: list[Interval] = field(default_factory=list)
    copied: Counter[str] = field(default_factory=Counter)  # bytes, by what they were
    generations: list[Generation] = field(default_factory=list)

    @property
    def split(self) -> Split:
        """The split of the first round."""
        return self.generations[0].split


class OffloadEngine:
    """A model whose weights and context are where a policy keeps them.

    On a CPU `overlap` runs the lanes as threads, the link at `link_bytes_per_s` at the most; else
    jobs run as they come. `tile` makes results independent of how requests are batched. `cost` is
    measured if it is not given.
    """

    def __init__(
        self,
        model: Model,
        policy: OffloadPolicy,
        block_size: int = 16,
        device: str = "cpu",
        source: Source | None = None,
        seed: int = 0,
        tile: int | None = None,
        overlap: bool = True,
        link_bytes_per_s: float | None = None,
        cost: CostModel | None = None,
        max_requests: int = 1024,
    ) -> None:
        self.model, self.policy, self.block_size = model, policy, block_size
        self.device, self.max_requests = torch.device(device), max_requests
        self.arch = architecture(model, self.device, tile)
        source = source or seeded(seed, self.device, self.arch.dtype)
        self.weights = Weights(self.arch, source, resident=not policy.streamed)
        self.link_bytes_per_s = link_bytes_per_s
        self.lanes = RealLanes(self.device, link_bytes_per_s, overlap)
        self.cost = cost or profile(self.arch, self.weights, self.lanes)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        output_tokens: Sequence[int],
        after_pass: Callable[[Pass], None] = lambda step: None,
    ) -> Generated:
        """Greedy tokens of all requests, as many each as asked for."""
        lengths = [Length(len(p), n) for p, n in zip(prompts, output_tokens, strict=True)]
        found = Generated()
        for batch in rounds(
            self.policy,
            self.cost.sizes,
            self.model.layers,
            self.block_size,
            lengths,
            self.max_requests,
        ):
            self._round(
                batch, [prompts[i] for i in batch], [lengths[i] for i in batch], found, after_pass
            )
        return found

    def _round(
        self,
        numbers: list[int],
        prompts: list[Sequence[int]],
        lengths: list[Length],
        found: Generated,
        after_pass: Callable[[Pass], None],
    ) -> None:
        generation = Generation(self.policy, self.cost, self.model.layers, self.block_size, lengths)
        found.generations.append(generation)
        ids = [torch.tensor(prompt, device=self.device) for prompt in prompts]
        work = TensorWork(self.arch, self.weights, generation, ids)
        start_s = time.perf_counter()
        for step in run(generation.passes(), work, self.lanes, self.policy.schedule):
            end_s = time.perf_counter()
            requests = [numbers[row.index] for row in step.rows]
            found.passes.append(PassTime(step, requests, start_s, end_s))
            start_s = end_s
            after_pass(step)
        found.intervals += self.lanes.read()
        found.copied += work.copied
        for number, tokens in zip(numbers, work.outputs, strict=True):
            found.tokens[number] = torch.stack(tokens).tolist()

    def close(self) -> None:
        """End the lanes."""
        self.lanes.close()

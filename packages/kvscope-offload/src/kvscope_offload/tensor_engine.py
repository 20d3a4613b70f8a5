"""The engine that computes: prompts in, greedy tokens out."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from kvscope.api.models import Model
from kvscope_offload.architecture import architecture
from kvscope_offload.cost import CostModel
from kvscope_offload.engine import Engine, PassResult, Prompt
from kvscope_offload.generation import Generation
from kvscope_offload.lanes import RealLanes
from kvscope_offload.pipeline import Pass, run
from kvscope_offload.policy import OffloadPolicy
from kvscope_offload.profile import profile
from kvscope_offload.split import Split
from kvscope_offload.tensor_work import Memory, TensorWork
from kvscope_offload.timeline import Interval
from kvscope_offload.weights import Source, Weights, seeded


@dataclass
class Generated:
    """Output tokens of a batch, with its passes, copies and the spans of the lanes."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    passes: list[PassResult] = field(default_factory=list)
    intervals: list[Interval] = field(default_factory=list)
    copied: Counter[str] = field(default_factory=Counter)  # bytes, by what they were
    generations: list[Generation] = field(default_factory=list)

    @property
    def split(self) -> Split:
        """The split of the first round."""
        return self.generations[0].split


class TensorEngine(Engine):
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
    ) -> None:
        self.device = torch.device(device)
        self.arch = architecture(model, self.device, tile)
        drawn = seeded(seed, self.device, self.arch.dtype)
        self.weights = Weights(self.arch, source or drawn, resident=not policy.streamed)
        self.lanes = RealLanes(self.device, link_bytes_per_s, overlap)
        cost = cost or profile(self.arch, self.weights, self.lanes)
        super().__init__(model, policy, cost, block_size)
        self.copied: Counter[str] = Counter()
        self._memory: Memory | None = None

    def generate(self, prompts: Sequence[Prompt], output_tokens: Sequence[int]) -> Generated:
        """Greedy tokens of all requests, as many each as asked for."""
        generated = Generated({i: [] for i in range(len(prompts))})
        self.copied.clear()
        for done in self.stream(prompts, output_tokens):
            generated.passes.append(done)
            for number, token in zip(done.requests, done.tokens, strict=True):
                generated.tokens[number].append(token)
            if self.generation not in generated.generations[-1:]:
                assert self.generation is not None
                generated.generations.append(self.generation)
        generated.intervals = self.lanes.read()
        generated.copied = Counter(self.copied)
        return generated

    def compute(
        self, generation: Generation, prompts: list[Prompt]
    ) -> Iterator[tuple[Pass, list[int]]]:
        """The passes of one batch, each when its tokens are known."""
        if self._memory is None or not self._memory.suits(generation):
            self._memory = None  # freed before more is allocated
            self._memory = Memory(self.arch, self.weights, generation)
        ids = [torch.tensor(prompt, device=self.device) for prompt in prompts]
        work = TensorWork(self.arch, self.weights, generation, self._memory, ids)
        for step in run(generation.passes(), work, self.lanes, self.policy.schedule):
            yield step, work.sampled(step)
        self.copied += work.copied

    def measured(self) -> list[Interval]:
        """Spans of the lanes since this was last read."""
        return self.lanes.read()

    def close(self) -> None:
        """End the lanes."""
        self.lanes.close()

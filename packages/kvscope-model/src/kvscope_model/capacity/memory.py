"""The memory of a GPU that is left for its KV cache: an estimate of what vLLM measures.

vLLM gives the KV cache what is left of `gpu_memory_utilization` of the memory after weights, the
peak of a pass with `max_num_batched_tokens` tokens, CUDA's context and libraries, and, since 0.21,
its CUDA graphs (`vllm/v1/worker/gpu_worker.py`, `determine_available_memory`).
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kvscope_model.capacity.gpus import Gpu

GIB = 2**30


@dataclass(frozen=True)
class Estimate:
    """A measured constant: a usual value, and the range of those that servers have logged."""

    usual: float
    low: float
    high: float


# Of the starts in packages/kvscope-model/data/startup_logs.yaml by vLLM 0.20 and later.
ACTIVATIONS = Estimate(1.2, 0.9, 1.9)  # times the activations of the largest layer
CONTEXT_GIB = Estimate(0.4, 0.2, 0.6)  # CUDA's context and libraries
TWO_RANKS_GIB = Estimate(0.3, 0.1, 0.6)  # buffers of NCCL and of all-reduce
MORE_RANKS_GIB = Estimate(1.9, 1.5, 2.9)
GRAPHS_GIB = Estimate(0.5, 0.1, 2.0)  # CUDA graphs as estimated before their capture
LOGIT_BYTES = 6  # of a request and a vocabulary entry: in the model's number type and in float32


@dataclass
class Budget:
    """The memory of a rank of each pipeline stage; `stated_bytes` is of the KV cache, if known."""

    gpu: Gpu | None
    stated_bytes: int | None
    ranks: list["RankMemory"] = field(default_factory=list)

    def of_ranks(self, config: Any, stages: Sequence[Any]) -> list[int]:
        """Bytes of the KV cache of a rank of each stage, for vLLM's configuration."""
        if self.gpu is not None:
            share = config.cache_config.gpu_memory_utilization
            usable = math.ceil(self.gpu.memory_bytes * share)
            shape = Shape.of(config)
            self.ranks = [shape.rank(usable, stage.weight_bytes) for stage in stages]
        if self.stated_bytes is not None:
            return [self.stated_bytes] * len(stages)
        return [max(0, rank.kv_bytes) for rank in self.ranks]

    def shortage(self) -> str:
        """Why nothing is left for a KV cache; '' if it is stated, or if something is left."""
        fullest = min(self.ranks, key=lambda rank: rank.kv_bytes, default=None)
        if self.stated_bytes is not None or fullest is None or fullest.kv_bytes > 0:
            return ""
        weights, usable = fullest.weight_bytes / GIB, fullest.usable_bytes / GIB
        rest = (fullest.activation_bytes + fullest.other_bytes) / GIB
        beside = f", all else about {rest:,.1f} GiB" if weights < usable else ""
        return (
            f"the weights of each GPU take {weights:,.1f} GiB{beside}, and vLLM may use "
            f"{usable:,.1f} GiB."
        )

    def as_json(self) -> dict[str, Any]:
        """The memory of each rank, where the GPU is known, and whether the KV cache's is stated."""
        ranks = [asdict(rank) | {"kv_bytes": rank.kv_bytes} for rank in self.ranks]
        return {"stated": self.stated_bytes is not None, "ranks": ranks}


@dataclass(frozen=True)
class RankMemory:
    """Bytes of a rank: what it may use, weights, activations, everything else.

    `kv_low_bytes` and `kv_high_bytes` are the KV cache's with the ranges of the estimates.
    """

    usable_bytes: int
    weight_bytes: int
    activation_bytes: int
    other_bytes: int
    kv_low_bytes: int
    kv_high_bytes: int

    @property
    def kv_bytes(self) -> int:
        """What is left for the KV cache; negative if the weights do not fit."""
        return self.usable_bytes - self.weight_bytes - self.activation_bytes - self.other_bytes


@dataclass(frozen=True)
class Shape:
    """What the peak of a pass depends on, of one rank."""

    tokens: int
    requests: int
    hidden: int
    inner: int
    vocabulary: int
    number_bytes: int
    tensor_ranks: int
    graphs: bool

    @staticmethod
    def of(config: Any) -> "Shape":
        """The shape of vLLM's configuration."""
        text = config.model_config.hf_text_config
        ranks = config.parallel_config.tensor_parallel_size
        hidden = int(config.model_config.get_hidden_size())
        experts = getattr(text, "num_experts_per_tok", None) or getattr(text, "top_k_experts", None)
        inner = getattr(text, "intermediate_size", None) or 4 * hidden
        if isinstance(experts, int):
            expert_inner = getattr(text, "moe_intermediate_size", None) or inner
            inner = max(experts * int(expert_inner), experts * hidden * ranks // 2)
        graphs = config.compilation_config.cudagraph_mode
        return Shape(
            config.scheduler_config.max_num_batched_tokens,
            config.scheduler_config.max_num_seqs,
            hidden,
            int(inner) if isinstance(inner, int) else 4 * hidden,
            int(config.model_config.get_vocab_size()),
            config.model_config.dtype.itemsize,
            ranks,
            bool(graphs) and not config.model_config.enforce_eager,
        )

    def rank(self, usable_bytes: int, weight_bytes: int) -> RankMemory:
        """The memory of a rank with these weights."""
        usual, low, high = (self._spent(end) for end in ("usual", "low", "high"))
        left = usable_bytes - weight_bytes
        return RankMemory(usable_bytes, weight_bytes, *usual, left - sum(high), left - sum(low))

    def _spent(self, end: str) -> tuple[int, int]:
        """Bytes of activations, and of everything else, at an end of the estimates."""
        others = [CONTEXT_GIB]
        if self.tensor_ranks > 1:
            others.append(TWO_RANKS_GIB if self.tensor_ranks == 2 else MORE_RANKS_GIB)
        if self.graphs:
            others.append(GRAPHS_GIB)
        other_bytes = int(sum(getattr(part, end) for part in others) * GIB)
        return int(self.activation_bytes() * getattr(ACTIVATIONS, end)), other_bytes

    def activation_bytes(self) -> int:
        """The peak of a pass: a layer's activations, or the logits if these take more.

        A layer holds its input, residual and output, and of a gated feed-forward part the two
        projections and their product.
        """
        inner = 3 * self.inner // self.tensor_ranks
        layer = self.tokens * self.number_bytes * (4 * self.hidden + inner)
        return max(layer, self.requests * self.vocabulary * LOGIT_BYTES)

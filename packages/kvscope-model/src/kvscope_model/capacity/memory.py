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


@dataclass
class Budget:
    """The memory of a rank of each pipeline stage; `stated_bytes` is of the KV cache, if known."""

    gpu: Gpu | None
    stated_bytes: int | None
    ranks: list["RankMemory"] = field(default_factory=list)

    def of_ranks(self, config: Any, stages: Sequence[Any]) -> list[int]:
        """Bytes of the KV cache of a rank of each stage, for vLLM's configuration."""
        if self.stated_bytes is not None or self.gpu is None:
            return [self.stated_bytes or 0] * len(stages)
        share = config.cache_config.gpu_memory_utilization
        total = math.ceil(self.gpu.memory_bytes * share)
        shape = Shape.of(config)
        self.ranks = [
            RankMemory(
                total, stage.weight_bytes, shape.activation_bytes(), OTHER.value_bytes(shape)
            )
            for stage in stages
        ]
        return [max(0, rank.kv_bytes) for rank in self.ranks]

    def as_json(self) -> dict[str, Any]:
        """The memory of each rank, or nothing where the KV cache's is stated."""
        return {"ranks": [asdict(rank) | {"kv_bytes": rank.kv_bytes} for rank in self.ranks]}


@dataclass(frozen=True)
class RankMemory:
    """Bytes of a rank: what it may use, weights, activations, everything else."""

    usable_bytes: int
    weight_bytes: int
    activation_bytes: int
    other_bytes: int

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

    def activation_bytes(self) -> int:
        """The peak of a pass: a layer's activations, or the sampler's logits if these take more.

        A layer holds its input, residual and output, and of a gated feed-forward part the two
        projections and their product; the sampler has logits of each request in float32 and a
        sorted copy with its indices (`vllm/v1/sample/ops/topk_topp_sampler.py`).
        """
        layer = (
            self.tokens
            * self.number_bytes
            * (4 * self.hidden + 3 * self.inner // self.tensor_ranks)
        )
        sampler = self.requests * self.vocabulary * (4 + 4 + 4 + 8)
        return max(layer, sampler)


@dataclass(frozen=True)
class Other:
    """CUDA's context and libraries, and CUDA graphs, in GiB."""

    context_gib: float
    links_gib: float  # NCCL's and all-reduce's buffers with several ranks
    graphs_gib: float

    def value_bytes(self, shape: Shape) -> int:
        """Bytes of one rank."""
        links = self.links_gib if shape.tensor_ranks > 1 else 0.0
        return int((self.context_gib + links + (self.graphs_gib if shape.graphs else 0.0)) * GIB)


OTHER = Other(context_gib=0.3, links_gib=1.2, graphs_gib=0.5)

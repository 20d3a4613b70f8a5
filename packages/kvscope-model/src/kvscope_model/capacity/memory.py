"""The memory of a GPU that is left for its KV cache: an estimate of what vLLM measures.

vLLM gives the KV cache what is left of `gpu_memory_utilization` of the memory after weights, the
peak of its profile run, CUDA's context and libraries, and, since 0.21, its CUDA graphs
(`vllm/v1/worker/gpu_worker.py`, `determine_available_memory`).
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kvscope_model.capacity.checkpoint import Checkpoint
from kvscope_model.capacity.gpus import Gpu
from kvscope_model.capacity.profile import CURRENT, Release, Shape

GIB = 2**30


@dataclass(frozen=True)
class Estimate:
    """A measured constant: a usual value, and the range of those that servers have logged."""

    usual: float
    low: float
    high: float

    def __add__(self, other: "Estimate") -> "Estimate":
        ends = ("usual", "low", "high")
        return Estimate(*(getattr(self, end) + getattr(other, end) for end in ends))

    def __mul__(self, times: float) -> "Estimate":
        return Estimate(self.usual * times, self.low * times, self.high * times)


# Of the starts in packages/kvscope-model/data/startup_logs.yaml.
ACTIVATIONS = Estimate(1, 0.9, 1.12)  # times the peak that follows from the shapes
CONTEXT_GIB = Estimate(0.3, 0.05, 0.45)  # libraries, and kernels that are loaded as they run
# Buffers of NCCL and of all-reduce; with NVLink SHARP, symmetric memory too.
LINKS_GIB = Estimate(0.2, 0, 0.5)
SHARP_LINKS_GIB = Estimate(1.8, 0, 2.1)
# Images of some processors have fewer tokens than the shapes take, videos have more.
IMAGES_GIB = Estimate(0, -0.4, 1.5)
SHARP = (9, 10)  # compute capabilities of the GPUs that have it
# CUDA graphs as estimated before their capture: those of a layer, and of 51 batch sizes.
GRAPHS_GIB = Estimate(0.35, 0.2, 0.6)
LAYER_GRAPHS_GIB = Estimate(0.016, 0.012, 0.022)
BATCH_SIZES = 51
# The host uses the memory of a GPU that has none of its own, and the cache of files grows in it.
UNIFIED_GIB = Estimate(1.2, -1, 4)


@dataclass
class Budget:
    """The memory of a rank of each pipeline stage; `stated_bytes` is of the KV cache, if known.

    `checkpoint` has the weights, if its files are there. `notes` say where they are from.
    """

    gpu: Gpu | None
    stated_bytes: int | None
    ranks: list["RankMemory"] = field(default_factory=list)
    checkpoint: Checkpoint | None = None
    shape: Shape | None = None
    encoder_bytes: int = 0
    notes: list[str] = field(default_factory=list)

    def of_ranks(self, config: Any, stages: Sequence[Any]) -> list[int]:
        """Bytes of the KV cache of a rank of each stage, for vLLM's configuration."""
        self.encoder_bytes = sum(stage.encoder_bytes for stage in stages)
        if self.gpu is not None:
            share = config.cache_config.gpu_memory_utilization
            usable = math.ceil(self.gpu.memory_bytes * share)
            self.shape = Shape.of(config, self.encoder_bytes > 0)
            weights = self._weights(stages, self.shape)
            self.ranks = [rank(self.gpu, usable, each, self.shape) for each in weights]
        if self.stated_bytes is not None:
            return [self.stated_bytes] * len(stages)
        return [max(0, rank.kv_bytes) for rank in self.ranks]

    def _weights(self, stages: Sequence[Any], shape: Shape) -> list[int]:
        """Bytes of the weights of a rank of each stage, of the checkpoint or of the layers."""
        counted = [stage.weight_bytes for stage in stages]
        if (files := self.checkpoint) is None:
            return counted
        shares = [stage.share(shape.tensor_ranks) for stage in stages]
        whole = sum(each / share for each, share in zip(counted, shares, strict=True))
        self.notes = [files.note(shape.number_bytes, int(whole))]
        if files.damaged:
            return counted
        scale = files.weight_bytes(shape.number_bytes) / whole
        return [int(each * scale) for each in counted]

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
        shape = asdict(self.shape) if self.shape else None
        return {
            "stated": self.stated_bytes is not None,
            "ranks": ranks,
            "shape": shape,
            "encoder_bytes": self.encoder_bytes,
            "notes": self.notes,
        }


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


def rank(
    gpu: Gpu, usable_bytes: int, weight_bytes: int, shape: Shape, release: Release = CURRENT
) -> RankMemory:
    """The memory of a rank with these weights."""
    peak = shape.activation_bytes(release)
    least = ACTIVATIONS.low * shape.least_activation_bytes(release)
    others = _others(gpu, shape, release) * GIB
    left = usable_bytes - weight_bytes
    return RankMemory(
        usable_bytes,
        weight_bytes,
        int(ACTIVATIONS.usual * peak),
        int(others.usual),
        left - int(ACTIVATIONS.high * peak + others.high),
        left - int(least + others.low),
    )


def _others(gpu: Gpu, shape: Shape, release: Release) -> Estimate:
    """GiB of everything else."""
    total = CONTEXT_GIB
    if shape.tensor_ranks > 1:
        total += SHARP_LINKS_GIB if gpu.major in SHARP else LINKS_GIB
    if shape.graphs and release.counts_graphs:
        layers = LAYER_GRAPHS_GIB * (shape.layers / shape.stages)
        total += (GRAPHS_GIB + layers) * (shape.graphs / BATCH_SIZES)
    if shape.encoder:
        total += IMAGES_GIB
    if gpu.unified:
        total += UNIFIED_GIB
    return total

"""The parts of an experiment that are not options, and what options may look at of it."""

from typing import Annotated, ClassVar, Literal, Protocol

from pydantic import Field

from kvscope.plan.fields import Count, Gib, Part, Real, Tokens
from kvscope.plan.models import Model


class EngineSettings(Part):
    """Limits of the engine, named as vLLM names them, and whose attention kernels it uses."""

    max_model_len: Tokens
    max_num_batched_tokens: Tokens
    max_num_seqs: Tokens
    attention: str = "vllm"


class CacheSettings(Part):
    """The KV cache: tokens per block, and how many blocks, or how many GiB, requests can use.

    `layout` tells what is contiguous: a block's part of one layer, or a block with all layers.
    `watermark` is the share of blocks that stays free when a waiting request is admitted.
    """

    one_of: ClassVar[tuple[str, ...]] = ("blocks", "gib")

    block_size: Tokens
    blocks: Count | None = None
    gib: Gib | None = None
    layout: Literal["by_layer", "by_block"] = "by_layer"
    watermark: Annotated[Real, Field(ge=0, lt=1)] = 0.0
    prefix_caching: bool = False


class TracingSettings(Part):
    """Which KV events the attention kernels record.

    Of the forward passes, layers and KV heads, those whose number is a multiple of a stride.
    `buffer_events` bounds the events that a buffer, and so one pass, can hold in memory.
    """

    name: Literal["none", "sampled", "full"]
    step_stride: Count = 1
    layer_stride: Count = 1
    head_stride: Count = 1
    buffer_events: Count = 4_194_304


class ProfilerSettings(Part):
    """Which profiler runs around the engine; 'auto' is nsys where there is one."""

    name: Literal["auto", "nsys", "none"]


class Conditions(Protocol):
    """What an option works with: an `Experiment`, as devices, workloads and policies see it."""

    @property
    def model(self) -> Model:
        """The model."""

    @property
    def engine(self) -> EngineSettings:
        """The engine's limits."""

    @property
    def cache(self) -> CacheSettings:
        """The KV cache as configured."""

    @property
    def tracing(self) -> TracingSettings:
        """Which KV events are recorded."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers."""

    @property
    def cache_blocks(self) -> int:
        """Blocks that requests can use."""

    @property
    def cache_tokens(self) -> int:
        """Tokens whose K and V fit into the cache."""

"""The parts of an experiment that are not options, and the view of it that options get."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Protocol

from pydantic import Field

from kvscope.plan.fields import Count, Gib, Label, Part, Real, Tokens
from kvscope.tables.kv_group import KvGroup

EVENT_BYTES, EVENT_BUFFERS = 32, 2  # of a recorded KV event; filled and emptied in turns


class EngineSettings(Part):
    """Limits of the engine, with vLLM's names, and the attention kernels that it uses.

    With `scheduler_reserve_full_isl` a request is admitted only if the free blocks hold all of its
    tokens, and not the first chunk alone.
    """

    max_model_len: Annotated[
        Tokens, Label("longest request (tokens)", "requests of {} tokens at most")
    ]
    max_num_batched_tokens: Annotated[
        Tokens, Label("most tokens in a pass", "passes of {} tokens at most")
    ]
    max_num_seqs: Annotated[
        Tokens, Label("most requests in a batch", "batches of {} requests at most")
    ]
    attention: Annotated[str, Label("attention kernels", "{} attention")] = "vllm"
    scheduler_reserve_full_isl: Annotated[
        bool, Label("a prompt is admitted only if all of it fits")
    ] = True


class CacheSettings(Part):
    """The KV cache: tokens per block, and its size in blocks or GiB that requests can use.

    `oversubscription` sizes it by the workload: blocks of all requests over blocks of the cache.
    Planning fills in the blocks (`kvscope.plan.demand`).
    `layout` is what is contiguous in memory: a block's part of one layer, its K and its V apart, or
    a block with all its layers. `watermark` is the share of blocks that stays free when a waiting
    request is admitted; `admission` names the vLLM whose rules admit and continue requests.
    """

    one_of: ClassVar[tuple[str, ...]] = ("blocks", "gib", "oversubscription")
    fills_in: ClassVar[dict[str, str]] = {"oversubscription": "blocks"}

    block_size: Annotated[Tokens, Label("block size (tokens)", "block size {}")]
    blocks: Annotated[Count | None, Label("KV cache (blocks)", "KV cache {} blocks")] = None
    gib: Annotated[Gib | None, Label("KV cache (GiB)", "KV cache {} GiB")] = None
    oversubscription: Annotated[
        Annotated[Real, Field(gt=0)] | None,
        Label("oversubscription", "{} times oversubscribed"),
    ] = None
    layout: Annotated[
        Literal["by_layer", "by_k_and_v", "by_block"], Label("layout of the cache", "cache {}")
    ] = "by_layer"
    watermark: Annotated[Real, Field(ge=0, lt=1), Label("blocks kept free (share)")] = 0.0
    admission: Literal["vllm", "vllm-0.4.2"] = "vllm"
    prefix_caching: Annotated[bool, Label("prefix caching")] = False
    dtype: Annotated[Literal["auto", "fp8"], Label("number type of the cache", "cache in {}")] = (
        "auto"
    )

    def pieces(self, layers: int) -> int:
        """Contiguous pieces of a block of so many layers."""
        return {"by_block": 1, "by_layer": layers, "by_k_and_v": 2 * layers}[self.layout]


class TracingSettings(Part):
    """The KV events that the attention kernels record.

    Forward passes, layers and KV heads are recorded if their number is a multiple of the stride.
    `buffer_events` is the capacity of a buffer, and so the most events of one pass.
    """

    name: Literal["none", "sampled", "full"]
    step_stride: Count = 1
    layer_stride: Count = 1
    head_stride: Count = 1
    buffer_events: Count = 4_194_304

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the buffers; 0 without tracing."""
        return 0 if self.name == "none" else EVENT_BUFFERS * EVENT_BYTES * self.buffer_events


class ProfilerSettings(Part):
    """The profiler that runs around the engine; 'auto' is nsys where it is installed."""

    name: Literal["auto", "nsys", "none"]


class ChosenModel(Protocol):
    """Sizes of the model that options may read; `kvscope.plan.models.Model` has all of them."""

    @property
    def name(self) -> str:
        """Its name in the configuration."""

    @property
    def family(self) -> str:
        """The shape of its transformer blocks."""

    @property
    def dtype(self) -> str:
        """The number type of its weights."""

    @property
    def hidden_size(self) -> int:
        """Numbers of a token between layers."""

    @property
    def intermediate_size(self) -> int:
        """Numbers of a token inside the MLP of a layer."""

    @property
    def head_size(self) -> int:
        """Numbers of a token in an attention head."""

    @property
    def vocab_size(self) -> int:
        """Token ids."""

    @property
    def layers_apart(self) -> int:
        """Layers whose blocks have memory of their own: layers of other KV groups share it."""

    @property
    def keeps_latent(self) -> bool:
        """Whether layers keep a latent in place of K and V."""

    @property
    def number_bytes(self) -> int:
        """Bytes of a number in the model's dtype."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights in the model's dtype."""


class ChosenDevice(Protocol):
    """Attributes of the device that other options may read (`kvscope.plan.device.Device`)."""

    allocates: ClassVar[bool]
    caches_prefixes: ClassVar[bool]
    copies_awaited: ClassVar[bool]
    forces_outputs: ClassVar[bool]
    has_costs: ClassVar[bool]

    @property
    def name(self) -> str:
        """Its name in the configuration."""

    @property
    def threads(self) -> int:
        """CPU threads of the engine."""


class ChosenBatching(Protocol):
    """Attributes of the batching policy that other options may read (`plan.policy.Batching`)."""

    @property
    def name(self) -> str:
        """Its name in the configuration."""

    @property
    def pass_tokens(self) -> int | None:
        """The token budget of a pass; None if only the engine's limit applies."""


class ChosenOverflow(Protocol):
    """Attributes of the overflow policy that other options may read (`plan.policy.Overflow`)."""

    @property
    def name(self) -> str:
        """Its name in the configuration."""

    @property
    def victim(self) -> str:
        """Whom it preempts."""

    @property
    def resumes_at_once(self) -> bool:
        """Whether victims resume in the pass that admits them."""

    def refusal(self, groups: Sequence[KvGroup]) -> str:
        """Why it does not take a model with such KV groups, in a sentence; '' if it does."""

    def staging_bytes(self, experiment: "Conditions") -> int:
        """Bytes of a GPU's memory that its copies take."""


class Conditions(Protocol):
    """The view of an `Experiment` that devices, workloads and policies get."""

    @property
    def model(self) -> ChosenModel:
        """The model of the experiment."""

    @property
    def engine(self) -> EngineSettings:
        """The engine's limits."""

    @property
    def device(self) -> ChosenDevice:
        """The device that runs the experiment."""

    @property
    def batching(self) -> ChosenBatching:
        """The batching policy."""

    @property
    def overflow(self) -> ChosenOverflow:
        """The overflow policy."""

    @property
    def cache(self) -> CacheSettings:
        """The KV cache as configured."""

    @property
    def seed(self) -> int:
        """The seed of all that is drawn."""

    @property
    def tracing(self) -> TracingSettings:
        """The settings of recorded KV events."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers."""

    @property
    def kv_width(self) -> int:
        """Bytes of a number that the cache keeps of a token."""

    @property
    def kv_groups(self) -> tuple[KvGroup, ...]:
        """The KV groups of the model's layers."""

    @property
    def request_blocks(self) -> int:
        """Blocks, over all KV groups, with which vLLM takes the longest request."""

    @property
    def cache_blocks(self) -> int:
        """Blocks that requests can use."""

    @property
    def cache_tokens(self) -> int:
        """Tokens whose K and V fit into the cache."""

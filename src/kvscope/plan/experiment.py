"""An experiment: one frozen, validated object, its id, and its file."""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, ValidationError, model_validator

from kvscope.plan import documents, rules
from kvscope.plan.complaints import Origin, complaint
from kvscope.plan.fields import (
    MAX_REPEATS,
    MAX_THREADS,
    Count,
    Gib,
    Part,
    Rate,
    Real,
    Requests,
    Seconds,
    Sha256,
    Tokens,
    Whole,
)
from kvscope.plan.models import Model
from kvscope.plan.policies import KINDS, PLUGIN, Plugin
from kvscope.plan.repeats import Repeated, Stopping
from kvscope.plan.sources import HASHES

GIB = 2**30
ID_DIGITS = 10


class Device(Part):
    """Where the engine runs; `threads` are the CPU threads it may use."""

    name: Literal["cpu", "cuda"]
    threads: Annotated[Whole, Field(ge=1, le=MAX_THREADS)]


class Engine(Part):
    """Limits of the engine, named as vLLM names them, and whose attention kernels it uses."""

    max_model_len: Tokens
    max_num_batched_tokens: Tokens
    max_num_seqs: Tokens
    attention: Literal["vllm", "paged", "instrumented"] = "vllm"


class Arrivals(Part):
    """When requests reach the engine and how long they wait; every workload has these keys."""

    name: str
    arrival: Literal["all_at_once", "poisson", "trace"]
    rate_per_s: Rate | None = None
    timeout_s: Seconds | None = None


class Fixed(Arrivals):
    """Requests of one length."""

    name: Literal["fixed"]
    num_requests: Requests
    prompt_tokens: Tokens
    output_tokens: Tokens


class Spread(Arrivals):
    """Requests whose total lengths are drawn from [min_tokens, max_tokens]."""

    num_requests: Requests
    min_tokens: Annotated[Tokens, Field(ge=2)]
    max_tokens: Annotated[Tokens, Field(ge=2)]
    prompt_to_output_ratio: Annotated[Real, Field(gt=0)]


class Uniform(Spread):
    """Every total length alike likely."""

    name: Literal["uniform"]


class Zipf(Spread):
    """Short requests likelier than long ones, by Zipf's law with exponent `theta`."""

    name: Literal["zipf"]
    theta: Annotated[Real, Field(gt=0, lt=1)]


class ShareGPT(Arrivals):
    """Lengths of real conversations, from the user's copy of the ShareGPT file.

    The hashes are of the files' content (plan.sources); the planner fills them in.
    """

    name: Literal["sharegpt"]
    num_requests: Requests
    path: str
    sha256: Sha256
    tokenizer: str | None = None
    tokenizer_sha256: Sha256 | None = None
    max_tokens: Annotated[Tokens, Field(ge=5)]


class Trace(Arrivals):
    """Lengths, and arrival times if wanted, from a recorded trace.

    `sha256` is of the file's content; the planner fills it in.
    """

    name: Literal["trace"]
    num_requests: Requests | None = None
    path: str
    sha256: Sha256


class PrefillFirst(Part):
    """Prefill and decode never share a forward pass, and prefill comes first."""

    name: Literal["prefill_first"]


class Mixed(Part):
    """Prefill and decode share a forward pass; a prompt is computed whole."""

    name: Literal["mixed"]


class Chunked(Part):
    """Prefill and decode share a forward pass of at most `chunk_tokens` tokens."""

    name: Literal["chunked"]
    chunk_tokens: Tokens

    @property
    def slug(self) -> str:
        """Its part of the experiment's slug."""
        return f"{self.name}{self.chunk_tokens}"


class Recompute(Part):
    """A preempted request gives up its blocks and is computed again."""

    name: Literal["recompute"]


class Swap(Part):
    """A preempted request's blocks are copied to a host pool and back when it resumes.

    The pool has `host_blocks` blocks, or as many as fit into `host_gib`.
    """

    name: Literal["swap"]
    host_memory: Literal["pinned", "pageable"]
    copies: Literal["per_block", "coalesced"]
    host_gib: Gib | None = None
    host_blocks: Count | None = None


class Cache(Part):
    """The KV cache: tokens per block, and how many blocks, or how many GiB, requests can use.

    `layout` tells what is contiguous: a block's part of one layer, or a block with all layers.
    `watermark` is the share of blocks that stays free when a waiting request is let in.
    """

    block_size: Tokens
    blocks: Count | None = None
    gib: Gib | None = None
    layout: Literal["by_layer", "by_block"] = "by_layer"
    watermark: Annotated[Real, Field(ge=0, lt=1)] = 0.0
    prefix_caching: bool = False


class Tracing(Part):
    """Which KV events the attention kernels record.

    Of the forward passes, layers and KV heads, those whose number is a multiple of a stride.
    `buffer_events` bounds the events that a buffer, and so one pass, can hold in memory.
    """

    name: Literal["none", "sampled", "full"]
    step_stride: Count = 1
    layer_stride: Count = 1
    head_stride: Count = 1
    buffer_events: Count = 4_194_304


class Profiler(Part):
    """Which profiler runs around the engine; 'auto' is nsys where there is one."""

    name: Literal["auto", "nsys", "none"]


Workload = Annotated[Fixed | Uniform | Zipf | ShareGPT | Trace, Field(discriminator="name")]


def _kind_of_batching(value: Any) -> str:
    return _kind(value, ("prefill_first", "mixed", "chunked"))


def _kind_of_overflow(value: Any) -> str:
    return _kind(value, ("recompute", "swap"))


def _kind(value: Any, known: tuple[str, ...]) -> str:
    """kvscope's own policies have typed settings, those of other packages their own."""
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    return name if name in known else PLUGIN


Batching = Annotated[
    Annotated[PrefillFirst, Tag("prefill_first")]
    | Annotated[Mixed, Tag("mixed")]
    | Annotated[Chunked, Tag("chunked")]
    | Annotated[Plugin, Tag(PLUGIN)],
    Discriminator(_kind_of_batching),
]
Overflow = Annotated[
    Annotated[Recompute, Tag("recompute")]
    | Annotated[Swap, Tag("swap")]
    | Annotated[Plugin, Tag(PLUGIN)],
    Discriminator(_kind_of_overflow),
]


class Experiment(Part):
    """Everything that decides a result, and nothing else."""

    model: Model
    device: Device
    engine: Engine
    workload: Workload
    batching: Batching
    overflow: Overflow
    cache: Cache
    tracing: Tracing
    profiler: Profiler
    # NumPy's legacy generator, which the Zipf workload is defined by, takes 32 bits.
    seed: Annotated[Whole, Field(ge=0, lt=2**32)]
    repeats: Repeated
    warmup: Annotated[Whole, Field(ge=0, le=MAX_REPEATS)]

    @model_validator(mode="after")
    def _possible(self) -> "Experiment":
        rules.check(self)
        return self

    @property
    def canonical_json(self) -> str:
        """The text that is hashed: keys sorted, no spaces, keys at their class's default left out.

        Leaving them out keeps every id when a later version adds a key with a default. Of a file
        the text holds what is in it, not where it is.
        """
        value = self.given(exclude_defaults=True)
        value["workload"] = {k: v for k, v in value["workload"].items() if k not in HASHES}
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)

    def given(self, exclude_defaults: bool = False) -> dict[str, Any]:
        """All values that are set; of another package's policy null is a value, too."""
        value = self.model_dump(exclude_none=True, exclude_defaults=exclude_defaults)
        for kind in KINDS:
            chosen = getattr(self, kind)
            if isinstance(chosen, Plugin):
                value[kind] = {"name": chosen.name} | chosen.settings
        return value

    @property
    def id(self) -> str:
        """The slug and the first 10 hex digits of the SHA-256 of the canonical JSON."""
        digest = hashlib.sha256(self.canonical_json.encode()).hexdigest()
        return f"{self.slug}-{digest[:ID_DIGITS]}"

    @property
    def slug(self) -> str:
        """A short name for people: model, workload, batching, overflow, cache, tracing."""
        model = self.model.name if self.device.name == "cpu" else f"{self.model.name}-cuda"
        workload = f"{self.workload.name}{self.workload.num_requests or ''}"
        batching = getattr(self.batching, "slug", self.batching.name)
        cache = self.cache
        room = f"b{cache.blocks}" if cache.blocks else f"g{cache.gib:g}".replace("+", "")
        traced = "" if self.tracing.name == "none" else f"-{self.tracing.name}"
        policies = f"{batching}-{self.overflow.name}"
        return f"{model}-{workload}-{policies}-{room}x{cache.block_size}{traced}"

    @property
    def stopping(self) -> Stopping:
        """When its repeats end."""
        return Stopping.of(self.repeats)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V of one token over all layers."""
        return self.model.kv_bytes_per_token

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers."""
        return self.cache.block_size * self.kv_bytes_per_token

    @property
    def cache_blocks(self) -> int:
        """Blocks that requests can use; of cache.gib, as many as fit."""
        if self.cache.blocks is not None:
            return self.cache.blocks
        return int((self.cache.gib or 0) * GIB // self.block_bytes)

    @property
    def chunk_tokens(self) -> int | None:
        """The token budget of a pass; None unless prompts are cut to one."""
        return self.batching.chunk_tokens if isinstance(self.batching, Chunked) else None

    @property
    def host_pool(self) -> tuple[int | None, float | None]:
        """The size of the host pool as it was given: in blocks, in GiB."""
        if isinstance(self.overflow, Recompute):
            return None, None
        return self.overflow.host_blocks, self.overflow.host_gib

    @property
    def host_blocks(self) -> int:
        """Blocks of the host pool; 0 where the policy has none."""
        blocks, gib = self.host_pool
        return blocks or int((gib or 0) * GIB // self.block_bytes)

    @property
    def cache_tokens(self) -> int:
        """Tokens whose K and V fit into the cache."""
        return self.cache_blocks * self.cache.block_size


def parse(value: Any, origin: Origin) -> Experiment:
    """Make an experiment of plain mappings; BadInput says where (`origin`) to fix what."""
    try:
        return Experiment.model_validate(value)
    except ValidationError as error:
        raise complaint(Experiment, error, origin) from None


def load(path: Path) -> Experiment:
    """Read an experiment.yaml; BadInput names the file and the key if it cannot be used."""
    return parse(documents.load_mapping(path), lambda key: str(path))


def dump(experiment: Experiment) -> str:
    """The experiment as YAML: everything resolved, the same bytes for the same experiment."""
    return documents.dump(experiment.given())

"""An experiment: one frozen, validated object, its id, and its file."""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from kvscope.plan import documents, rules
from kvscope.plan.complaints import Origin, complaint
from kvscope.plan.fields import Count, CountOrZero, Part, Real, Whole
from kvscope.plan.models import Model

GIB = 2**30
ID_DIGITS = 10


class Device(Part):
    """Where the engine runs; `threads` are the CPU threads it may use."""

    name: Literal["cpu", "cuda"]
    threads: Count


class Engine(Part):
    """Limits of the engine, named as vLLM names them."""

    max_model_len: Count
    max_num_batched_tokens: Count
    max_num_seqs: Count


class Arrivals(Part):
    """When requests reach the engine; every workload has these keys."""

    name: str
    arrival: Literal["all_at_once", "poisson", "trace"]
    rate_per_s: Annotated[Real, Field(gt=0)] | None = None


class Fixed(Arrivals):
    """Requests of one length."""

    name: Literal["fixed"]
    num_requests: Count
    prompt_tokens: Count
    output_tokens: Count


class Spread(Arrivals):
    """Requests whose total lengths are drawn from [min_tokens, max_tokens]."""

    num_requests: Count
    min_tokens: Annotated[Whole, Field(ge=2)]
    max_tokens: Annotated[Whole, Field(ge=2)]
    prompt_to_output_ratio: Annotated[Real, Field(gt=0)]


class Uniform(Spread):
    """Every total length alike likely."""

    name: Literal["uniform"]


class Zipf(Spread):
    """Short requests likelier than long ones, by Zipf's law with exponent `theta`."""

    name: Literal["zipf"]
    theta: Annotated[Real, Field(gt=0, lt=1)]


class ShareGPT(Arrivals):
    """Lengths of real conversations, from the user's copy of the ShareGPT file."""

    name: Literal["sharegpt"]
    num_requests: Count
    path: str
    tokenizer: str | None = None
    max_tokens: Annotated[Whole, Field(ge=5)]


class Trace(Arrivals):
    """Lengths, and arrival times if wanted, from a recorded trace."""

    name: Literal["trace"]
    num_requests: Count | None = None
    path: str


class Mixed(Part):
    """Prefill and decode share a forward pass; a prompt is computed whole."""

    name: Literal["mixed"]

    @property
    def slug(self) -> str:
        """Its part of the experiment's slug."""
        return self.name


class Chunked(Part):
    """Prefill and decode share a forward pass of at most `chunk_tokens` tokens."""

    name: Literal["chunked"]
    chunk_tokens: Count

    @property
    def slug(self) -> str:
        """Its part of the experiment's slug."""
        return f"{self.name}{self.chunk_tokens}"


class Recompute(Part):
    """A preempted request gives up its blocks and is computed again."""

    name: Literal["recompute"]


class Cache(Part):
    """The KV cache: tokens per block, and how many blocks, or how many GiB, requests can use."""

    block_size: Count
    blocks: Count | None = None
    gib: Annotated[Real, Field(gt=0)] | None = None


class Tracing(Part):
    """Which KV events the attention kernels record."""

    name: Literal["none"]


class Profiler(Part):
    """Which profiler runs around the engine; 'auto' is nsys where there is one."""

    name: Literal["auto", "nsys", "none"]


Workload = Annotated[Fixed | Uniform | Zipf | ShareGPT | Trace, Field(discriminator="name")]
Batching = Annotated[Mixed | Chunked, Field(discriminator="name")]


class Experiment(Part):
    """Everything that decides a result, and nothing else."""

    model: Model
    device: Device
    engine: Engine
    workload: Workload
    batching: Batching
    overflow: Recompute
    cache: Cache
    tracing: Tracing
    profiler: Profiler
    # NumPy's legacy generator, which the Zipf workload is defined by, takes 32 bits.
    seed: Annotated[Whole, Field(ge=0, lt=2**32)]
    repeats: Count
    warmup: CountOrZero

    @model_validator(mode="after")
    def _possible(self) -> "Experiment":
        rules.check(self)
        return self

    @property
    def canonical_json(self) -> str:
        """The text that is hashed: keys sorted, no spaces, keys without a value left out.

        Leaving them out keeps every id when a later version adds an optional key.
        """
        value = self.model_dump(exclude_none=True)
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @property
    def id(self) -> str:
        """The slug and the first 10 hex digits of the SHA-256 of the canonical JSON."""
        digest = hashlib.sha256(self.canonical_json.encode()).hexdigest()
        return f"{self.slug}-{digest[:ID_DIGITS]}"

    @property
    def slug(self) -> str:
        """A short name for people: model, workload, batching, overflow, cache."""
        model = self.model.name if self.device.name == "cpu" else f"{self.model.name}-cuda"
        workload = f"{self.workload.name}{self.workload.num_requests or ''}"
        cache = self.cache
        room = f"b{cache.blocks}" if cache.blocks else f"g{cache.gib:g}".replace("+", "")
        return (
            f"{model}-{workload}-{self.batching.slug}-{self.overflow.name}"
            f"-{room}x{cache.block_size}"
        )

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
    return parse(documents.load(path), lambda key: str(path))


def dump(experiment: Experiment) -> str:
    """The experiment as YAML: everything resolved, the same bytes for the same experiment."""
    return documents.dump(experiment.model_dump(exclude_none=True))

"""The planner's view of a device: limits of its kernels, memory requirements, and speed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from kvscope.base.time_sources import BY_CLOCK, MEASURED, REHEARSED
from kvscope.plan.decisions import Decisions, Draft
from kvscope.plan.fields import MAX_THREADS, Label, Whole, impossible
from kvscope.plan.option import Option
from kvscope.plan.parts import Conditions
from kvscope.tables.evidence import ALL

if TYPE_CHECKING:
    from kvscope.plan.gpu_memory import GpuMemory


@dataclass(frozen=True)
class Speed:
    """The rates of a device and its fixed times, for the estimate of walltimes."""

    start_s: float  # start of Python, PyTorch, vLLM and the profiler
    load_bytes_per_s: float  # drawing of random weights
    compile_s: float  # compilation of kvscope's attention kernels
    pass_s: float  # overhead of a forward pass
    token_s: float  # overhead of a token: scheduling, sampling, records
    flops_per_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class Kernels:
    """Support of a device's attention kernels; None means any value."""

    block_multiple: int = 1  # the block size must be a multiple of it, in tokens
    latent_block: int | None = None  # of latent attention, the block size
    latent_fp8: bool = True  # whether a latent can be kept in fp8
    head_sizes: tuple[int, ...] | None = None
    dtypes: tuple[str, ...] | None = None
    layouts: tuple[str, ...] | None = ("by_layer", "by_block")
    compared: bool = False  # warm-up compares their outputs with a plain recomputation

    def refusals(self, experiment: Conditions) -> dict[str, tuple[object, str]]:
        """The keys with unsupported values: for each its value, and what it must be in words."""
        model, cache = experiment.model, experiment.cache
        latent = model.keeps_latent
        limits = {
            "cache.layout": (cache.layout, self.layouts),
            "model.head_size": (model.head_size, self.head_sizes),
            "model.dtype": (model.dtype, self.dtypes),
        }
        refused: dict[str, tuple[object, str]] = {
            key: (value, f"one of {', '.join(map(str, allowed))}")
            for key, (value, allowed) in limits.items()
            if allowed is not None and value not in allowed
        }
        if latent and not self.latent_fp8 and cache.dtype == "fp8":
            refused["cache.dtype"] = (cache.dtype, "auto for a latent")
        if latent and self.latent_block is not None:
            if cache.block_size != self.latent_block:
                words = f"{self.latent_block} for a latent"
                refused["cache.block_size"] = (cache.block_size, words)
        elif cache.block_size % self.block_multiple:
            multiple = f"a multiple of {self.block_multiple}"
            refused["cache.block_size"] = (cache.block_size, multiple)
        return refused


class Device(Option):
    """A device that the engine runs on; `threads` is the number of CPU threads it may use.

    `platform` is the device's class in the engine package, 'module:Class'. `attentions` maps each
    engine.attention that the device has to what its kernels support. By default weights and KV
    cache are in host memory.

    The facts that a run of the device has, which `kvscope check` holds its run.json against:
    `time_source` is of every time in its tables. If it is `rehearsed`, a CPU can have been in its
    place, and every time says so instead. `allocates` is false of a device without a worker:
    neither weights nor cache nor host pool take memory, and nothing of the model is computed.
    `copies_awaited` is true if a copy ends before the call returns, so that the host can time it.
    `times_layers` is false where the layers of a pass have no times of their own, because several
    are under way at once. `caches_prefixes` is false of a device whose engine has no prefix cache.
    `forces_outputs` is true if it can give the tokens of a workload whose outputs are known before.
    `has_costs` is true if it has the numbers of a cost model itself; those of others are the
    cost model's of the device's name (`kvscope.plan.costs`), if it has some.

    `intervals` names the function, 'module:function', that gives intervals of a modeled run's
    metrics: of its records and the metrics' values, by the metrics' names.

    `TOKEN` is what requests are given on a device that computes nothing of the model.

    `evidence` is what its runs have. `caveat` is a sentence for the page of whoever reads them.
    """

    TOKEN: ClassVar[int] = 7
    platform: ClassVar[str]
    attentions: ClassVar[dict[str, Kernels]] = {"vllm": Kernels()}
    speed: ClassVar[Speed]
    gpus: ClassVar[int] = 0
    time_source: ClassVar[str] = MEASURED
    rehearsed: ClassVar[bool] = False
    allocates: ClassVar[bool] = True
    copies_awaited: ClassVar[bool] = True
    times_layers: ClassVar[bool] = True
    caches_prefixes: ClassVar[bool] = True
    forces_outputs: ClassVar[bool] = False
    has_costs: ClassVar[bool] = False
    intervals: ClassVar[str] = ""
    evidence: ClassVar[frozenset[str]] = ALL
    caveat: ClassVar[str] = ""
    in_id: ClassVar[tuple[str, ...]] = ("threads",)

    threads: Annotated[Whole, Field(ge=1, le=MAX_THREADS), Label("CPU threads")] = 1

    @property
    def slug(self) -> str:
        """Its part of an experiment's slug, after the model's name."""
        return f"-{self.name}"

    @classmethod
    def time_sources(cls) -> tuple[str, ...]:
        """Allowed values of time_source for a run of the device."""
        return (cls.time_source, REHEARSED) if cls.rehearsed else (cls.time_source,)

    @classmethod
    def decide(cls, drafts: Sequence[Draft]) -> Sequence[Decisions]:
        """Values that its engine decides in place of the drafts' values, for each draft.

        A plan has all of its drafts decided at once. BadInput if the engine cannot be asked.
        """
        return [{} for _ in drafts]

    @property
    def by_clock(self) -> bool:
        """Whether its times are of a real clock, which no arrival and no cost moves."""
        return self.time_source in BY_CLOCK

    @property
    def flops_per_s(self) -> float:
        """Floating-point operations a second with all its threads."""
        return self.speed.flops_per_s

    def memory_bytes(self, experiment: Conditions) -> int:
        """Bytes of host memory that hold weights and cache while requests are served."""
        cache = experiment.cache_blocks * experiment.block_bytes
        return cache + 2 * experiment.model.weight_bytes  # as loaded, and packed for its product

    @property
    def usable_bytes(self) -> int | None:
        """Bytes that an engine may take of its GPU's memory; None if it does not say which GPU."""
        return None

    def gpu_memory(self, experiment: Conditions) -> "GpuMemory | None":
        """GPU memory that an experiment takes; None without a GPU, or if it is unknown."""
        return None

    def passes_s(self, experiment: Conditions, lengths: Sequence[tuple[int, int]]) -> list[float]:
        """Seconds of the passes that serve a batch of requests, each with prompt and output tokens.

        Of a modeled device that computes such a batch to its end; empty of others.
        """
        return []

    def engine_facts(
        self, experiment: Conditions, lengths: Sequence[tuple[int, int]]
    ) -> dict[str, Any]:
        """Entry of run.json's `engine` for the first batch of the warm-up, by such a device.

        `lengths` are the prompt and output tokens of its requests; none without a warm-up.
        """
        return {}

    def loading_bytes(self, experiment: Conditions) -> int:
        """Bytes of host memory that weights take only while they are loaded."""
        return 0

    def check(self, experiment: Conditions) -> None:
        """Refuse an engine.attention that the device lacks, and values it does not support."""
        attention = experiment.engine.attention
        if attention not in self.attentions:
            raise impossible(
                f"engine.attention ({attention}) must be {_one_of(self.attentions)} on device "
                f"{self.name}",
                "engine.attention",
                "device",
            )
        refused = self.attentions[attention].refusals(experiment)
        for key, (value, expected) in refused.items():
            others = [n for n, k in self.attentions.items() if key not in k.refusals(experiment)]
            remedy = f", or engine.attention {_one_of(others)}" if others else ""
            raise impossible(
                f"{key} ({value}) must be {expected} with engine.attention={attention} on device "
                f"{self.name}{remedy}",
                key,
                "engine.attention",
            )


def _one_of(names: Iterable[str]) -> str:
    return " or ".join(names)

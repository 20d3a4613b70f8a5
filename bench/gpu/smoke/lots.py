"""Experiments of the steps `engine`, `offload` and `profiler`, in lots, by importance.

A lot is a campaign of `kvscope run`: one process imports vLLM, and is forked for each of its runs.
"""

from dataclasses import dataclass
from functools import cached_property

from kvscope.plan.experiment import Experiment
from kvscope.plan.grid import expand
from smoke.place import REHEARSED, ROOT

TINY = (
    *("device=cuda", "model=tiny-llama", "workload=fixed", "workload.num_requests=8"),
    *("workload.prompt_tokens=96", "workload.output_tokens=96", "engine.max_model_len=256"),
    *("engine.max_num_batched_tokens=1024", "engine.max_num_seqs=16", "cache.block_size=16"),
    *("engine.attention=instrumented", "profiler=none", "repeats=1", "warmup=1"),
)
LLAMA = (
    *("device=cuda", "model=yarn-llama-2-7b", "workload=fixed", "workload.num_requests=4"),
    *("workload.prompt_tokens=992", "workload.output_tokens=64", "engine.max_model_len=1056"),
    *("engine.max_num_batched_tokens=4096", "engine.max_num_seqs=4", "cache.block_size=16"),
    *("engine.attention=instrumented", "profiler=none", "repeats=1", "warmup=1"),
    *("batching=prefill_first", "cache.blocks=250", "overflow=swap", "overflow.host_gib=4"),
)
# Windows and full attention, by vLLM's own kernels in Triton.
GROUPS = (
    *("device=cuda", "model=tiny-interleaved", "workload=fixed", "workload.num_requests=4"),
    *("workload.prompt_tokens=96", "workload.output_tokens=96", "engine.max_model_len=256"),
    *("engine.max_num_batched_tokens=1024", "engine.max_num_seqs=16", "cache.block_size=16"),
    *("cache.blocks=140", "profiler=none", "repeats=1", "warmup=1"),
)
AMPLE, SCARCE, POOL = "cache.blocks=128", "cache.blocks=48", "overflow.host_gib=0.25"
# In a rehearsal: small enough for Triton's interpreter.
IN_SMALL = {
    "model": "tiny-llama",
    "model.layers": "1",
    "workload.num_requests": "2",
    "workload.prompt_tokens": "20",
    "workload.output_tokens": "14",
    "engine.max_model_len": "64",
    "engine.max_num_batched_tokens": "64",
    "cache.blocks": "4",
}
SMALLER = {"batching.chunk_tokens": "32", "overflow.host_gib": "0.01"}  # where they are set
SMALL_AMPLE = "20"


@dataclass
class Run:
    """An experiment; `tokens_of` is a run of the same lot or before whose tokens it must have."""

    name: str
    settings: tuple[str, ...]
    tokens_of: str | None = None

    @cached_property
    def experiment(self) -> Experiment:
        """The experiment, in small if it is rehearsed."""
        result = dict(word.split("=", 1) for word in self.settings)
        if REHEARSED:
            ample = AMPLE in self.settings
            result |= IN_SMALL | {key: SMALLER[key] for key in SMALLER.keys() & result.keys()}
            result |= {"cache.blocks": SMALL_AMPLE} if ample else {}
        words = [f"{key}={value}" for key, value in result.items()]
        return expand(None, words, ROOT / "config").experiments[0].experiment


@dataclass(frozen=True)
class Lot:
    """Runs of one campaign, and how many seconds it takes on a GPU."""

    name: str
    seconds: float
    runs: tuple[Run, ...]


ENGINE = (
    Lot(
        "overflow",
        60,
        (
            Run("ample", (*TINY, AMPLE)),
            Run("recompute", (*TINY, SCARCE), "ample"),
            Run("swap", (*TINY, SCARCE, "overflow=swap", POOL), "ample"),
        ),
    ),
    Lot(
        "recorded",
        50,
        (
            Run(
                "swap, coalesced, chunked, recorded",
                (
                    *(*TINY, SCARCE, "overflow=swap", POOL, "overflow.copies=coalesced"),
                    *("batching=chunked", "batching.chunk_tokens=128", "tracing=full"),
                ),
                "ample",
            ),
            Run("native", (*TINY, SCARCE, "overflow=native", POOL), "ample"),
        ),
    ),
    Lot(
        "7B",
        60,
        (
            Run("7B, swap", LLAMA),
            Run("7B, swap, coalesced", (*LLAMA, "overflow.copies=coalesced")),
        ),
    ),
    Lot(
        "further",
        60,
        (
            Run("activation", (*TINY, SCARCE, "overflow=activation", POOL), "ample"),
            Run(
                "adaptive",
                (*TINY, SCARCE, "overflow=adaptive", "overflow.hardware=h100", POOL),
                "ample",
            ),
            # Not compared: vLLM's kernels sum in another order where the batch is another.
            Run("KV groups, swap", (*GROUPS, "overflow=swap", POOL)),
        ),
    ),
)
# In float32, in which K and V that are rebuilt give the same tokens.
OPT = (
    *("device=offload_cuda", "model=tiny-opt", "workload=fixed", "workload.num_requests=8"),
    *("workload.prompt_tokens=21", "workload.output_tokens=6", "cache.blocks=64"),
    *("profiler=none", "repeats=1", "warmup=1"),
)
# Not rehearsed: layers of one tensor are written and read on streams side by side.
OFFLOAD = (
    Lot(
        "offload",
        60,
        (
            Run("gpu_kv", (*OPT, "device.policy=gpu_kv", "device.device_gib=0.1")),
            Run("kv_only", (*OPT, "device.policy=kv_only"), "gpu_kv"),
            Run("hybrid", (*OPT, "device.policy=hybrid", "device.share=0.5"), "gpu_kv"),
        ),
    ),
)
TRACED = tuple(word for word in TINY if not word.startswith("profiler="))
PROFILER = (
    Lot(
        "profiler",
        45,
        (
            Run("recompute, profiled", (*TRACED, SCARCE, "profiler=nsys")),
            Run("swap, profiled", (*TRACED, SCARCE, "profiler=nsys", "overflow=swap", POOL)),
        ),
    ),
)

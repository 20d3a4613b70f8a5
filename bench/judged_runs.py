"""Small runs of the modeled device, of every kind: what edits and forgeries of records begin with.

They have no clock, and so are the same on every machine.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from kvscope.base.errors import KvscopeError
from kvscope.base.layout import experiment_directory
from kvscope.cli.batch import Job, run_all
from kvscope.judge.records import Records, read_records
from kvscope.plan.experiment import Experiment
from kvscope.plan.grid import expand
from kvscope.run.display import Line

ROOT = Path(__file__).parents[1]

SMALL = (
    *("device=modeled", "model.layers=2", "workload=uniform", "workload.num_requests=8"),
    *("workload.min_tokens=60", "workload.max_tokens=160", "workload.prompt_to_output_ratio=2"),
    *("engine.max_model_len=192", "engine.max_num_batched_tokens=256", "engine.max_num_seqs=8"),
    *("cache.block_size=32", "cache.blocks=13", "repeats=2", "warmup=1", "seed=5"),
    *("profiler=none", "tracing=none"),
)
AS_VLLM = ("cache.admission=vllm", "cache.watermark=0")  # the modeled device has 0.4.2's
CHUNKED = ("batching=chunked", "batching.chunk_tokens=48")
SWAP = ("overflow=swap", "overflow.host_blocks=64")
PREFIXES = ("cache.prefix_caching=true",)
ACTIVATION = ("model=tiny-gqa", "model.kv_heads=4", "overflow=activation")
LATER = ("workload.arrival=poisson",)
WINDOWS = (
    *("model=tiny-interleaved", "cache.blocks=75", "device.kernels=vllm"),
    *("workload.min_tokens=200", "workload.max_tokens=300"),
    *("workload.prompt_to_output_ratio=0.5", "engine.max_model_len=320"),
)
CONVERSATION = (
    *("device=modeled", "device.hardware=h100", "model.layers=2", "cache.prefix_caching=true"),
    *("cache.blocks=11", "cache.block_size=32", "cache.admission=vllm", "cache.watermark=0.0"),
    *("workload=conversation", "workload.turns=3", "workload.system_tokens=70"),
    *("workload.max_tokens=288", "workload.think_s=0.002", "engine.max_model_len=288"),
    *("engine.max_num_batched_tokens=320", "engine.max_num_seqs=8"),
    *("batching=chunked", "batching.chunk_tokens=40", "repeats=2", "seed=1"),
    *("profiler=none", "tracing=none"),
)
NATIVE = (
    *("device=modeled", "device.hardware=a100-80gb", "cache.prefix_caching=true"),
    *("cache.admission=vllm", "cache.watermark=0", "cache.block_size=16"),
    *("cache.oversubscription=4", "engine.max_model_len=384", "engine.max_num_batched_tokens=512"),
    *("workload=multi-turn", "workload.system_tokens=60", "workload.first_tokens=80"),
    *("workload.growth_tokens=40", "workload.output_tokens=30", "workload.max_tokens=380"),
    *("workload.num_conversations=8", "workload.system_prompts=3", "workload.turns=3"),
    *("workload.think_s=0.002", "overflow.host_blocks=400", "repeats=2", "seed=3"),
    "device.constants={pinned_in_bytes_per_s: 2e9, pinned_out_bytes_per_s: 2e9}",
    *("profiler=none", "tracing=none"),
)
RUNS: dict[str, tuple[str, ...]] = {
    "recompute, chunked": (*SMALL, *CHUNKED, *AS_VLLM),
    "recompute, prefill first": (*SMALL, "batching=prefill_first", *AS_VLLM),
    "recompute, admission of 0.4.2": (*SMALL, *CHUNKED, "cache.admission=vllm-0.4.2"),
    "swap, mixed": (*SMALL, *SWAP, *AS_VLLM, "batching=mixed"),
    "swap, a small pool": (*SMALL, "overflow=swap", "overflow.host_blocks=4"),
    "activation": (*SMALL, *ACTIVATION, "overflow.host_blocks=64"),
    "adaptive": (*SMALL, *ACTIVATION, "overflow=adaptive", "overflow.host_blocks=20"),
    "prefixes, swap": (*SMALL, *PREFIXES, *SWAP),
    "prefixes, prefill first": (*SMALL, *PREFIXES, "batching=prefill_first"),
    "conversations, swap": (*CONVERSATION, *SWAP),
    "conversations, activation": (*CONVERSATION, *ACTIVATION, "overflow.host_blocks=40"),
    "arrivals": (*SMALL, *LATER, "workload.rate_per_s=200"),
    "aborts": (*SMALL, *SWAP, *LATER, "workload.rate_per_s=2000", "workload.timeout_s=0.05"),
    "victims first, swap": (*SMALL, *SWAP, "overflow.victim=first"),
    "victims least computed": (*SMALL, *CHUNKED, *PREFIXES, "overflow.victim=least_computed"),
    "traced, swap": (
        *(*SMALL, *SWAP, *AS_VLLM),
        *("model=tiny-gqa", "tracing=full", "workload.num_requests=6", "repeats=1"),
    ),
    "windows, recompute": (*SMALL, *WINDOWS, *CHUNKED),
    "windows, swap": (*SMALL, *WINDOWS, *CHUNKED, "overflow=swap", "overflow.host_blocks=150"),
    "native": (*NATIVE, "overflow=native", "batching=mixed"),
    "native full, chunked": (
        *(*NATIVE, "overflow=native_full"),
        *("batching=chunked", "batching.chunk_tokens=192"),
    ),
    "native full, prefill first": (*NATIVE, "overflow=native_full", "batching=prefill_first"),
}


def experiment(name: str) -> Experiment:
    """The experiment of a run; of several settings of a key the last counts."""
    words = {word.partition("=")[0]: word for word in RUNS[name]}
    (planned,) = expand(None, list(words.values()), ROOT / "config").experiments
    return planned.experiment


def make(results: Path, names: Iterable[str] = RUNS) -> dict[str, Records]:
    """The records of the runs of these names, made in `results` where they are not there.

    Raises KvscopeError if one fails.
    """
    places = {name: experiment_directory(results, experiment(name).id) for name in names}
    jobs = [
        Job(experiment(name), place, tables=True)
        for name, place in places.items()
        if not (place / "run.done").exists()
    ]
    with Line(sys.stderr) as line:
        if jobs and run_all(jobs, line):
            raise KvscopeError("a run failed; its reason is above")
    return {name: read_records(place) for name, place in places.items()}

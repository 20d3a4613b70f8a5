"""The keys of which two values must make a difference, and where the two are compared.

`test_effects_modeled.py` of kvscope-model runs those of `WALKED` on its device,
`tests/unit/test_effects.py` compares the requests of those of `IN_REQUESTS`; the keys that are in
neither are left out for a reason that stands here.
"""

from typing import NamedTuple


class Walk(NamedTuple):
    """A key, its second value, and the contexts of which one must tell it from the first."""

    key: str
    second: str
    contexts: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.key}={self.second} {self.contexts[0]}"


ADMISSIONS = ("vllm-0.4.2", "vllm")
SMALL = (
    *(
        "engine.max_model_len=192",
        "engine.max_num_batched_tokens=192",
        "engine.max_num_seqs=8",
        "workload=uniform",
    ),
    *("workload.min_tokens=32", "workload.max_tokens=176", "workload.num_requests=10"),
    *("cache.blocks=16", "profiler=none"),
)
CUT = "batching=chunked batching.chunk_tokens=32"
SWAP, SCARCE = "overflow=swap overflow.host_blocks=64", "overflow.host_blocks=3"
BATCHINGS = ("batching=mixed", "batching=prefill_first", CUT)
USUAL = (f"{CUT} {SWAP}", f"batching=mixed {SWAP}")

# Keys of every experiment.
EVERYWHERE = {
    "model": "tiny-gqa",
    "model.dtype": "bfloat16",
    "model.layers": "3",
    "model.intermediate_size": "65536",
    "model.vocab_size": "4096",
    "model.rope_theta": "5e5",
    "model.max_position_embeddings": "3000",
    "device.hardware": "h100",
    "device.constants": "{pinned_in_bytes_per_s: 1e9}",
    "device.threads": "2",
    "engine.max_num_seqs": "3",
    "engine.attention": "instrumented",
    "workload": "zipf",
    "workload.timeout_s": "0.001",
    "cache.block_size": "32",
    "cache.blocks": "24",
    "cache.layout": "by_block",
    "cache.watermark": "0.2",
    "cache.prefix_caching": "true",
    "cache.dtype": "fp8",
    "seed": "5",
    "repeats": "2",
    "warmup": "1",
    "exclusive": "true",
}
# Keys of overflow policies, in a pool that holds all blocks and in a scarce one.
OF_POOLS = {"overflow.victim": "first", "overflow.host_blocks": "2", "overflow.host_gib": "0.0003"}
OF_COPIES = {"overflow.host_memory": "pageable", "overflow.copies": "coalesced"}
OF_COST = {"overflow.hardware": "rtx-4090", "overflow.constants": "{gemm_flops_per_s: 1e9}"}
LARGE = "model=yarn-llama-2-7b"
OVERFLOWS = {
    "recompute": {"overflow.victim": "first", "cache.layout": "by_block"},
    "swap": OF_POOLS | OF_COPIES,
    "activation": OF_POOLS | OF_COPIES,
    "adaptive": OF_POOLS | OF_COPIES,
    "native": OF_POOLS,
    "native_full": OF_POOLS,
}
TRACED = f"{CUT} {SWAP} tracing=sampled"
STRIDES = {"tracing.step_stride": "2", "tracing.layer_stride": "2", "tracing.head_stride": "1"}
RULE = f"{CUT} {SWAP} repeats={{min:2,until:0.05,budget_s:100}}"
RESERVE = "engine.scheduler_reserve_full_isl"

ON_DRY = f"device=dry {CUT} {SWAP}"
OF_DRY = {"device.pass_s": "0.02", "device.copy_s": "0.02", **OF_POOLS, **OF_COPIES}
OF_HARDWARE = ("device.hardware", "device.constants", "device.kernels", "engine.attention")

WALKED = (
    *(Walk(key, second, USUAL) for key, second in EVERYWHERE.items()),
    *(
        Walk(key, second, (ON_DRY,))
        for key, second in (EVERYWHERE | OF_DRY | {"cache.block_size": "16"}).items()
        if key not in OF_HARDWARE
    ),
    *(
        Walk(key, second, (f"{CUT} overflow={name}",))
        for name, keys in OVERFLOWS.items()
        for key, second in keys.items()
    ),
    *(
        Walk(key, second, (f"{CUT} overflow=adaptive {LARGE} {hardware}",))
        for hardware in ("", "overflow.hardware=h100")
        for key, second in OF_COST.items()
    ),
    *(Walk(RESERVE, "false", (f"{batching} overflow=recompute",)) for batching in BATCHINGS),
    *(Walk(RESERVE, "false", (f"{batching} overflow=native",)) for batching in BATCHINGS[:2]),
    *(Walk("engine.max_num_batched_tokens", "224", (f"{one} {SWAP}",)) for one in BATCHINGS),
    Walk("device.kernels", "vllm-0.4.2", (f"{CUT} {SWAP} {LARGE}",)),
    Walk("batching.chunk_tokens", "48", USUAL[:1]),
    *(Walk(key, second, (TRACED,)) for key, second in STRIDES.items()),
    Walk("tracing.buffer_events", "16", (TRACED,)),
    Walk("repeats.min", "3", (RULE,)),
    Walk("repeats.until", "0.01", (RULE,)),
    Walk("repeats.budget_s", "0.001", (RULE,)),
)

# Keys of a workload: the second value changes its requests.
LENGTHS = {"workload.num_requests": "5"}
TOTALS = {"workload.min_tokens": "48", "workload.max_tokens": "128"}
RATIO = {"workload.prompt_to_output_ratio": "2.0"}
RATE = {"workload.arrival": "poisson workload.rate_per_s=2", "workload.rate_per_s": "3"}
SIGMAS = ("turns", "first_tokens", "growth_tokens", "output_tokens")
CONVERSATION = {
    "workload.num_conversations": "2",
    "workload.system_prompts": "2",
    "workload.system_tokens": "32",
    "workload.turns": "2",
    "workload.first_tokens": "40",
    "workload.growth_tokens": "16",
    "workload.output_tokens": "16",
    "workload.think_s": "1.0",
    "workload.think_sigma": "1.0",
    "workload.max_tokens": "200",
    **{f"workload.{name}_sigma": "1.0" for name in SIGMAS},
}
BLOCKS = {"workload.block_tokens": "16", "workload.time_scale": "2.0"}
IN_REQUESTS: dict[str, dict[str, str]] = {
    "fixed": LENGTHS | {"workload.prompt_tokens": "64", "workload.output_tokens": "16"} | RATE,
    "uniform": LENGTHS | TOTALS | RATIO | RATE,
    "zipf": LENGTHS | TOTALS | RATIO | {"workload.theta": "0.9"} | RATE,
    "conversation": CONVERSATION | RATE,
    "agents": {
        "workload.num_conversations": "2",
        "workload.max_think_s": "0.5",
        "workload.max_tokens": "20000",
    }
    | BLOCKS
    | RATE,
    "mooncake": LENGTHS
    | BLOCKS
    | {"workload.max_tokens": "6000", "workload.time_unit": "s"}
    | RATE,
    "trace": LENGTHS | {"workload.time_unit": "s"} | RATE,
}

WHAT_A_MODEL_IS = "part of the architecture, whose parts must fit one another"
OPTIONS = "each option is a context"
SIZES = "another form of cache.blocks"
FILES = "a file, or what of it is read"
LEFT_OUT = {
    "model.name": "a name",
    "model.config": WHAT_A_MODEL_IS,
    "model.kv_layers": WHAT_A_MODEL_IS,
    "model.family": WHAT_A_MODEL_IS,
    "model.hidden_size": WHAT_A_MODEL_IS,
    "model.attention_heads": WHAT_A_MODEL_IS,
    "model.kv_heads": WHAT_A_MODEL_IS,
    "model.head_size": WHAT_A_MODEL_IS,
    "model.tie_word_embeddings": WHAT_A_MODEL_IS,
    "model.rope_scaling": WHAT_A_MODEL_IS,
    "model.block_layers": WHAT_A_MODEL_IS,
    "model.weights": WHAT_A_MODEL_IS,
    "model.weights_per_token": WHAT_A_MODEL_IS,
    "device": "what runs the engine",
    "device.bootstrap": "of the intervals of metrics, no record",
    "engine": "a group",
    "engine.max_model_len": "a limit: longer requests are refused",
    "cache": "a group",
    "cache.admission": OPTIONS,
    "batching": OPTIONS,
    "overflow": OPTIONS,
    "tracing": OPTIONS,
    "cache.gib": SIZES,
    "cache.oversubscription": SIZES,
    "profiler": "of the profile beside the records",
    "workload.path": FILES,
    "workload.sha256": FILES,
    "workload.tokenizer": FILES,
    "workload.tokenizer_sha256": FILES,
    "workload.trace_block_tokens": FILES,
}

"""The policies whose tokens are compared, as settings, and the faults that must be noticed."""

BASE = (
    *(
        "workload=uniform",
        "workload.max_tokens=160",
        "engine.max_model_len=160",
        "engine.max_num_batched_tokens=256",
    ),
    *("engine.max_num_seqs=8", "profiler=none", "seed=7", "model.dtype=float32"),
    "model.layers=2",
)
AMPLE, SCARCE = ("cache.blocks=64",), ("cache.blocks=9",)
SMALL_BLOCKS = ("engine.attention=paged", "cache.block_size=5", "cache.blocks=58")
POOL = ("overflow=swap", "overflow.host_blocks=64")

BATCHING = {
    "prefill_first": ("batching=prefill_first",),
    "mixed": ("batching=mixed",),
    "chunked": ("batching=chunked", "batching.chunk_tokens=40"),
}
OVERFLOW = {
    "recompute": (*SCARCE, "overflow=recompute"),
    "swap-pinned-per_block": (*SCARCE, *POOL),
    "swap-pageable-coalesced": (
        *(*SCARCE, *POOL),
        *("overflow.host_memory=pageable", "overflow.copies=coalesced"),
    ),
    "swap-small-pool": (*SCARCE, "overflow=swap", "overflow.host_blocks=4"),
    "swap-small-blocks": (*SMALL_BLOCKS, "overflow=swap", "overflow.host_blocks=400"),
    "swap-by_block-coalesced": (
        *(*SMALL_BLOCKS, "overflow=swap", "overflow.host_blocks=400"),
        *("cache.layout=by_block", "overflow.copies=coalesced"),
    ),
}

# Ways to damage a swap.
FAULTS = ("no copy out", "no copy in", "late copy out")

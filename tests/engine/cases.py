"""The policies whose tokens are compared, as settings, and the faults that must be noticed."""

from collections.abc import Iterable
from typing import Any

import pytest

from kvscope.plan.registry import find_registered

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
# Groups of two heads: with more, activations are larger than K and V.
MODELS = {"tiny-gqa": ("model=tiny-gqa", "model.kv_heads=4")}
AMPLE, SCARCE = ("cache.blocks=64",), ("cache.blocks=9",)
SMALL_BLOCKS = ("engine.attention=paged", "cache.block_size=5", "cache.blocks=58")
ACTIVATIONS = ("overflow=activation", "overflow.host_blocks=64")
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
    "activation-pinned-per_block": (*SCARCE, *ACTIVATIONS),
    "activation-small-pool": (
        *(*SCARCE, "overflow=activation", "overflow.host_blocks=6"),
        *("overflow.host_memory=pageable", "overflow.copies=coalesced"),
    ),
    "adaptive": (*SCARCE, "overflow=adaptive", "overflow.host_blocks=6"),
    "activation-small-blocks": (*SMALL_BLOCKS, "overflow=activation", "overflow.host_blocks=400"),
    "native": (*SCARCE, "overflow=native", "overflow.host_blocks=64"),
    "native_full-prefix_caching": (
        *(*SCARCE, "overflow=native_full", "overflow.host_blocks=64"),
        "cache.prefix_caching=true",
    ),
}

# Ways to damage a swap, and the rebuilding of K and V.
FAULTS = {
    "no copy out": "swap-pinned-per_block",
    "no copy in": "swap-pinned-per_block",
    "late copy out": "swap-pinned-per_block",
    "nothing is saved": "activation-pinned-per_block",
    "tokens are saved a place late": "activation-pinned-per_block",
    "nothing is rebuilt": "activation-pinned-per_block",
    "the last layer is not rebuilt": "activation-pinned-per_block",
}

# Words in the names of cases whose policies other packages of this repository bring.
OF_PACKAGES = ("activation", "adaptive", "native", "saved", "rebuilt")


def is_of_packages(case: str) -> bool:
    """Whether the case needs the packages of this repository."""
    return any(word in case for word in OF_PACKAGES)


def marked(cases: Iterable[str]) -> list[Any]:
    """The cases as parameters; those that need the packages are marked."""
    of = {True: [pytest.mark.packages], False: []}
    return [pytest.param(case, marks=of[is_of_packages(case)]) for case in cases]


def that_run_here(cases: Iterable[str]) -> list[str]:
    """The cases whose policies are installed."""
    installed = "adaptive" in find_registered("overflow")
    return [case for case in cases if installed or not is_of_packages(case)]

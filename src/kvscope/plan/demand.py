"""The blocks that requests need, and the cache that `cache.oversubscription` makes of them."""

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kvscope.plan.complaints import Origin
from kvscope.plan.experiment import parse
from kvscope.plan.fields import MAX_NUMBER

if TYPE_CHECKING:
    from kvscope.plan.workload import Workload

AMPLE_BLOCKS = MAX_NUMBER
"""No experiment is refused for want of these."""


def size_cache(config: dict[str, Any], origin: Origin) -> dict[str, Any]:
    """The configuration with the blocks that its cache's oversubscription gives.

    `cache.blocks` is the blocks of all requests over `cache.oversubscription`, at least one.
    BadInput, as `parse` raises it, if there is no experiment with so many or more blocks.
    """
    cache = config.get("cache")
    if not isinstance(cache, dict) or cache.get("oversubscription") is None:
        return config
    ample = parse(config | {"cache": cache | {"blocks": AMPLE_BLOCKS}}, origin)
    demand = demand_blocks(ample.workload, ample.seed, ample.cache.block_size)
    blocks = max(1, int(demand / cache["oversubscription"]))
    return config | {"cache": cache | {"blocks": blocks}}


@lru_cache(maxsize=1024)
def demand_blocks(workload: "Workload", seed: int, block_size: int) -> int:
    """Blocks of all requests, each with its last token; BadInput if a file cannot be used."""
    return sum(-(-lengths.total // block_size) for lengths in workload.lengths(seed))

"""The prefix cache of a scheduler, which can be emptied and can drop blocks that no pass fills."""

from collections.abc import Iterable

from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.sched.scheduler import Scheduler


class PrefixCache:
    """The blocks of vLLM's pool that are in the prefix cache."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._pool = scheduler.kv_cache_manager.block_pool

    def empty(self) -> bool:
        """Empty the prefix cache; False if blocks are in use, and it stays as it is."""
        return bool(self._scheduler.reset_prefix_cache(reset_connector=True))

    @property
    def blocks(self) -> int:
        """Blocks that are in the prefix cache, in use or free."""
        return sum(block.block_hash is not None for block in self._pool.blocks)

    def forget_uncomputed(self, blocks: Iterable[KVCacheBlock], computed_tokens: int) -> None:
        """Remove the blocks of a request whose tokens are not all computed from the prefix cache.

        It was scheduled and is preempted in the same schedule, so nothing fills them. vLLM would
        leave them there.
        """
        self._pool.evict_blocks(
            {b.block_id for b in blocks if (b.block_hash_num_tokens or 0) > computed_tokens}
        )

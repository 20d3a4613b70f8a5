"""What vLLM's block pool does with blocks that are in the prefix cache: hits and evictions.

A block is in the prefix cache from the schedule of the pass that fills it until the pool gives it
to another request, whether a request holds it or it is free. Each has one owner, the request that
computed it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from kvscope.engine.recording import BlockEviction, BlockHit, CachedBlock
from kvscope.engine.scheduled import external_id

if TYPE_CHECKING:
    from kvscope.engine.scheduler import RecordingScheduler


class PrefixCache:
    """The prefix cache of one scheduler: it records hits and evictions.

    It takes the place of the block pool's metrics collector, and notes for which request the
    KV-cache manager allocates.
    """

    def __init__(self, scheduler: "RecordingScheduler") -> None:
        self._scheduler = scheduler
        self._cached: dict[int, CachedBlock] = {}  # by block id
        self._hits: dict[int, int] = {}  # of each cached block
        self._request = ""  # for which blocks are being allocated
        self._found: dict[str, int] = {}  # tokens, of admitted requests by internal id
        manager = scheduler.kv_cache_manager
        self._pool = manager.block_pool
        self._pool.metrics_collector = self
        self._allocate, manager.allocate_slots = manager.allocate_slots, self.allocate_slots
        manager.record_prefix_cache_stats = self.record_prefix_cache_stats
        self._cache_full_blocks = self._pool.cache_full_blocks
        self._pool.cache_full_blocks = self.cache_full_blocks

    def empty(self) -> bool:
        """Empty the prefix cache; False if blocks are in use, and it stays as it is."""
        return bool(self._scheduler.reset_prefix_cache(reset_connector=True))

    @property
    def blocks(self) -> int:
        """Blocks that are in the prefix cache, in use or free."""
        return sum(block.block_hash is not None for block in self._pool.blocks)

    def allocate_slots(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        """Allocate as the manager does, and note for whom."""
        self._request = external_id(request.request_id)
        return self._allocate(request, *args, **kwargs)

    def record_prefix_cache_stats(self, request: Request, num_hits: int) -> None:
        """Note the tokens that vLLM says a request found; it does so at each admission."""
        self._found[request.request_id] = num_hits

    def take_hits(self, scheduled: SchedulerOutput) -> dict[str, int]:
        """Tokens that requests of a pass found in the cache, by internal id; of each once."""
        names = self._found.keys() & scheduled.num_scheduled_tokens.keys()
        return {name: self._found.pop(name) for name in names}

    def cache_full_blocks(
        self,
        request: Request,
        blocks: Sequence[KVCacheBlock],
        num_cached_blocks: int,
        num_full_blocks: int,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Put a request's full blocks into the prefix cache as the pool does, and note whose."""
        self._cache_full_blocks(
            request, blocks, num_cached_blocks, num_full_blocks, *args, **kwargs
        )
        owner, step = external_id(request.request_id), self._scheduler.next_step
        for position in range(num_cached_blocks, num_full_blocks):
            block = blocks[position]
            if block.block_hash is not None:
                number = block.block_id
                self._cached[number] = CachedBlock(number, owner, position, step)
                self._hits[number] = 0

    def forget_uncomputed(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Take the blocks that the pass being scheduled was to fill out of the prefix cache.

        Their request was scheduled and is preempted in the same schedule, so nothing fills them.
        vLLM would leave them there.
        """
        step = self._scheduler.next_step
        held = (self._cached.get(block.block_id) for block in blocks)
        lost = {one.block for one in held if one is not None and one.step == step}
        for block in lost:
            del self._cached[block]
        self._pool.evict_blocks(lost)

    # ------------------------------------------------- what the pool tells its metrics collector

    def on_block_allocated(self, block: KVCacheBlock) -> None:
        """A block without content is given to a request."""

    def on_block_accessed(self, block: KVCacheBlock) -> None:
        """A cached block is given to a request that found it."""
        found = self._cached[block.block_id]
        self._hits[block.block_id] += 1
        hit = BlockHit(self._scheduler.next_step, self._request, found, block.ref_cnt > 1)
        self._scheduler.recording.hits.append(hit)

    def on_block_evicted(self, block: KVCacheBlock) -> None:
        """A free block is about to be given to another request; it may be in the cache."""
        lost = self._cached.pop(block.block_id, None)
        if lost is not None:
            hits = self._hits.pop(block.block_id)
            step, request = self._scheduler.next_step, self._request
            eviction = BlockEviction(step, request, lost, hits)
            self._scheduler.recording.evictions.append(eviction)

    def reset(self) -> None:
        """The prefix cache is empty."""
        self._cached.clear()
        self._hits.clear()

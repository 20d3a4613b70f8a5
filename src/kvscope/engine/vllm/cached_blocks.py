"""Records hits and evictions of blocks in the prefix cache.

A block is in the prefix cache from the schedule of the pass that fills it until the pool gives it
to another request, whether a request holds it or it is free. Each has one owner, the request that
computed it.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.request import Request

from kvscope.engine.observer import SchedulerObserver
from kvscope.engine.recording import BlockEviction, BlockHit, CachedBlock
from kvscope.engine.request_ids import external_id

if TYPE_CHECKING:
    from kvscope.engine.current import CurrentRecording


class CachedBlocks:
    """The blocks in the prefix cache of one scheduler.

    It takes the place of the block pool's metrics collector, and notes for which request the
    KV-cache manager allocates.
    """

    def __init__(self, recorder: "CurrentRecording", observer: SchedulerObserver) -> None:
        self._recorder, self._observer = recorder, observer
        self._cached: dict[int, CachedBlock] = {}  # by block id
        self._hits: dict[int, int] = {}  # of each cached block
        self._request = ""  # for which blocks are being allocated
        self._forgets = False  # what leaves the cache now was not computed
        manager = observer.scheduler.kv_cache_manager
        manager.block_pool.metrics_collector = self
        observer.follow(manager, "allocate_slots", before=self._allocates)
        observer.follow(manager.block_pool, "cache_full_blocks", after=self._caches)
        observer.follow(
            observer.scheduler.prefix_cache,
            "forget_uncomputed",
            before=partial(self._forget, True),
            after=partial(self._forget, False),
        )

    def _forget(self, begins: bool, *_: Any) -> None:
        self._forgets = begins

    def _allocates(self, _: int, request: Request, *__: Any, **___: Any) -> None:
        self._request = external_id(request.request_id)

    def _caches(
        self,
        _: int,
        __: Any,
        request: Request,
        blocks: Sequence[KVCacheBlock],
        num_cached_blocks: int,
        num_full_blocks: int,
        *___: Any,
        **____: Any,
    ) -> None:
        """A request's full blocks enter the prefix cache."""
        owner, step = external_id(request.request_id), self._observer.step
        for position in range(num_cached_blocks, num_full_blocks):
            block = blocks[position]
            if block.block_hash is not None:
                number = block.block_id
                self._cached[number] = CachedBlock(number, owner, position, step)
                self._hits[number] = 0

    # ------------------------------------------------- what the pool tells its metrics collector

    def on_block_allocated(self, block: KVCacheBlock) -> None:
        """A block without content is given to a request."""

    def on_block_accessed(self, block: KVCacheBlock) -> None:
        """A cached block is given to a request that found it."""
        content = self._cached[block.block_id]
        self._hits[block.block_id] += 1
        hit = BlockHit(self._observer.step, self._request, content, block.ref_cnt > 1)
        self._recorder.recording.hits.append(hit)

    def on_block_evicted(self, block: KVCacheBlock) -> None:
        """A block leaves the cache for another request, or because the pass to fill it is
        cancelled."""
        lost, hits = self._cached.pop(block.block_id, None), self._hits.pop(block.block_id, 0)
        if lost is not None and not self._forgets:
            eviction = BlockEviction(self._observer.step, self._request, lost, hits)
            self._recorder.recording.evictions.append(eviction)

    def reset(self) -> None:
        """The prefix cache is empty."""
        self._cached.clear()
        self._hits.clear()

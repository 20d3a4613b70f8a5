"""Blocks of requests that decode, without vLLM's checks where there is nothing to allocate.

A request that decodes needs a block once every `block_size` passes. vLLM checks each time, for
sliding windows and drafts that no modeled run has, and most of the scheduler's time is in that. A
modeled run measures no time: it answers what vLLM would answer. The pass that fills a block is left
to vLLM, which then puts the block into the prefix cache.
"""

from typing import Any

from vllm.v1.request import Request, RequestStatus

from kvscope.engine.vllm.scheduler import PolicyScheduler


def skip_needless_checks(scheduler: PolicyScheduler) -> None:
    """Have the KV-cache manager answer at once for a running request whose blocks have room."""
    manager = scheduler.kv_cache_manager
    blocks = manager.coordinator.single_type_managers[0].req_to_blocks
    block_size, nothing = scheduler.block_size, manager.empty_kv_cache_blocks
    caches = manager.enable_caching
    allocate, running = manager.allocate_slots, RequestStatus.RUNNING

    def allocate_slots(request: Request, num_new_tokens: int, *args: Any, **kwargs: Any) -> Any:
        if request.status == running and num_new_tokens == 1:
            computed = request.num_computed_tokens
            room = len(blocks[request.request_id]) * block_size - computed
            fills = caches and (computed + 1) % block_size == 0
            if room > kwargs.get("num_lookahead_tokens", 0) and not fills:
                return nothing
        return allocate(request, num_new_tokens, *args, **kwargs)

    manager.allocate_slots = allocate_slots

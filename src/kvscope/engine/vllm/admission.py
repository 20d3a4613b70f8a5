"""Rules by which requests are admitted to the cache and go on: `cache.admission`.

vLLM 0.4.2's are three conditions around today's `KVCacheManager.allocate_slots`, which decides
alone: it gives a request its blocks, or None.
"""

from typing import Any

from vllm.v1.request import Request, RequestStatus

from kvscope.engine.vllm.scheduler import PolicyScheduler


def admit_as_0_4_2(scheduler: PolicyScheduler) -> None:
    """Have the scheduler admit and continue requests by the rules of vLLM 0.4.2.

    - A running request goes on only if a block is free, whether it needs one or not
      (`can_append_slots`).
    - A swapped-out request resumes only if its blocks and one more fit above the watermark
      (`can_swap_in`).
    - The watermark holds also when nothing runs, and is a share of the blocks that requests can
      use. A prompt gets all its blocks when its first chunk is admitted (`can_allocate`).
    """
    manager = scheduler.kv_cache_manager
    pool, block_size, allocate = manager.block_pool, scheduler.block_size, manager.allocate_slots
    watermark = int(scheduler.scheduler_config.watermark * scheduler.kv_blocks_total)
    manager.watermark_blocks = watermark
    scheduler.watermark_when_idle, scheduler.kept_free = True, 1

    def allocate_slots(request: Request, num_new_tokens: int, *args: Any, **kwargs: Any) -> Any:
        free = pool.get_num_free_blocks()
        if request.status == RequestStatus.RUNNING:
            return allocate(request, num_new_tokens, *args, **kwargs) if free else None
        kwargs["has_scheduled_reqs"] = True
        loaded = kwargs.get("num_external_computed_tokens", 0)
        if loaded and free < -(-loaded // block_size) + 1 + watermark:
            return None
        cached = kwargs.get("num_new_computed_tokens", 0)  # in the prefix cache, which it had not
        computed = request.num_computed_tokens + cached + loaded + num_new_tokens
        kwargs["num_lookahead_tokens"] = request.num_tokens - computed
        return allocate(request, num_new_tokens, *args, **kwargs)

    manager.allocate_slots = allocate_slots

"""A subclass of vLLM's scheduler that applies the policies; `engine.observer` sees what it does."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import FCFSRequestQueue, SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

from kvscope.engine.batching.policy import BatchingPolicy
from kvscope.engine.clock import Clock
from kvscope.engine.overflow.host_tier import tier_of
from kvscope.engine.overflow.policy import OverflowPolicy, Preempted, Victim
from kvscope.engine.overflow.victims import Rank
from kvscope.engine.vllm.kv_groups import groups_of, in_order
from kvscope.engine.vllm.prefix_cache import PrefixCache
from kvscope.plan.actions import RECOMPUTE
from kvscope.tables.kv_plan import has_one_block_table


class GatedQueue(FCFSRequestQueue):
    """A queue that appears empty while `admits` refuses its first request."""

    admits: Callable[[Request], bool] | None = None

    def __bool__(self) -> bool:
        return len(self) > 0 and (self.admits is None or self.admits(self[0]))


class HiddenRequests(list[Request]):
    """An empty list of running requests that is true, so that vLLM applies its watermark."""

    def __bool__(self) -> bool:
        return True


class PolicyScheduler(Scheduler):
    """The scheduler of every kvscope run.

    The batching policy fills each pass, and may hide requests from vLLM while it does. The overflow
    policy ranks the running requests and returns the action for a preempted request's blocks.
    """

    running: list[Request]
    max_num_active_reqs: int
    max_num_running_reqs: int
    prefix_cache: PrefixCache | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.waiting = GatedQueue()
        self.kv_holding_waiting = GatedQueue()  # their blocks are being loaded, or have been
        self.batching = BatchingPolicy(name="")
        self.overflow = OverflowPolicy(name="")
        self.carried_out = Preempted(RECOMPUTE)  # for the last victim
        self.tier = tier_of(self.connector)
        self.watermark_when_idle = False  # vLLM has no watermark while nothing runs
        self.kept_free = 0  # blocks that must be free for a running request to go on
        self._rank: Rank | None = None
        self._hidden: list[Request] = []  # running requests that vLLM does not see
        self._preemptions = 0
        self._undone: SchedulerOutput | None = None  # an empty schedule that was not returned
        self._free = self.kv_cache_manager.block_pool.free_block_queue
        self.kv_groups = groups_of(self.kv_cache_config)
        self.one_block_table = has_one_block_table(self.kv_groups)
        if self.kv_cache_manager.enable_caching:
            self.prefix_cache = PrefixCache(self)

    def attach(
        self,
        batching: BatchingPolicy,
        overflow: OverflowPolicy,
        clock: Clock,
        rank: Rank | None = None,
    ) -> None:
        """Set the policies, the clock of copies, and the rank of victims, if any."""
        self.batching, self.overflow, self._rank = batching, overflow, rank
        self.tier.clock = clock
        self.tier.follow(overflow, self)
        if rank is not None:  # vLLM then preempts the running request of the highest `priority`
            self.policy = SchedulingPolicy.PRIORITY

    @property
    def ranks(self) -> bool:
        """Whether victims are ranked, else the last running request is preempted."""
        return self._rank is not None

    @property
    def kv_blocks_total(self) -> int:
        """Blocks that requests can use; vLLM keeps one more, the null block, for itself."""
        return int(self.kv_cache_manager.block_pool.num_gpu_blocks) - 1

    @property
    def kv_blocks_used(self) -> int:
        """Blocks that requests hold now."""
        return self.kv_blocks_total - self.kv_blocks_free

    @property
    def kv_blocks_free(self) -> int:
        """Blocks that are free now."""
        return int(self._free.num_free_blocks)

    @property
    def all_running(self) -> list[Request]:
        """The running requests, hidden requests first."""
        return [*self._hidden, *self.running]

    def swapped_out(self, request: Request) -> bool:
        """Whether a preempted request's tokens are kept in the host pool."""
        return request.request_id in self.tier

    def decodes_next(self, request: Request) -> bool:
        """Whether a preempted request has only its newest token to compute when it resumes.

        The others are kept in the host pool, are in the prefix cache, or have been loaded.
        """
        if request.num_computed_tokens:
            missing = max(1, request.num_tokens - request.num_computed_tokens)
        elif self.prefix_cache is None:
            return self.swapped_out(request)
        else:
            hit: int = self.kv_cache_manager.get_computed_blocks(request)[1]
            missing = request.num_tokens - hit - self.tier.loadable(request, hit)
        return missing == 1 and bool(request.num_output_tokens)

    def is_loading(self, request: Request) -> bool:
        """Whether a waiting request's blocks are being loaded: vLLM passes over it."""
        loading = request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
        return loading and request.request_id not in self.finished_recving_kv_req_ids

    @property
    def loaded(self) -> list[Request]:
        """The waiting requests whose blocks have been loaded."""
        return [request for request in self.kv_holding_waiting if not self.is_loading(request)]

    def has_room(self, request: Request) -> bool:
        """Whether a waiting request that is computed from its start may be admitted.

        False if vLLM would refuse it for want of blocks, as it does in most passes of a full cache.
        With a prefix cache vLLM decides: part of the request may be there. So it does where KV
        groups differ, of which each needs blocks of its own.
        """
        if self.prefix_cache is not None or not self.one_block_table:
            return True
        manager = self.kv_cache_manager
        reserved = manager.watermark_blocks if self.running or self.watermark_when_idle else 0
        blocks: int = -(-request.num_tokens // self.block_size) + reserved
        return blocks <= self.kv_blocks_free

    def blocks_of(self, request_id: str) -> list[int | None]:
        """The block ids of a request, as `kv_groups.in_order`."""
        return in_order(self.kv_cache_manager.get_block_ids(request_id))

    def _held_blocks(self, request_id: str) -> dict[int, KVCacheBlock]:
        """The blocks that a request holds, by id."""
        groups = self.kv_cache_manager.get_blocks(request_id).blocks
        return {block.block_id: block for block in chain(*groups) if not block.is_null}

    def group_blocks(self) -> tuple[int, ...]:
        """The blocks of each KV group that requests hold."""
        tables = [
            manager.req_to_blocks.values()
            for manager in self.kv_cache_manager.coordinator.single_type_managers
        ]
        return tuple(
            len({block.block_id for blocks in by_request for block in blocks if not block.is_null})
            for by_request in tables
        )

    @contextmanager
    def admit_only(self, admits: Callable[[Request], bool]) -> Iterator[None]:
        """Within the context, vLLM sees waiting requests only while `admits` accepts the first."""
        self.waiting.admits = admits
        self.kv_holding_waiting.admits = lambda r: self.is_loading(r) or admits(r)
        try:
            yield
        finally:
            self.waiting.admits = self.kv_holding_waiting.admits = None

    @contextmanager
    def hide_running(self) -> Iterator[None]:
        """Within the context, vLLM does not see the running requests; they keep their order."""
        paused, limit = self.running, self.max_num_active_reqs
        self._hidden, self.running = paused, HiddenRequests() if paused else []
        self.max_num_active_reqs = limit - len(paused)
        try:
            yield
        finally:
            self._hidden, self.running = [], [*paused, *self.running]
            self.max_num_active_reqs = limit

    def undo_empty_schedule(self, empty: SchedulerOutput) -> None:
        """Have the next schedule contain what an empty one did: ended requests, ordered copies."""
        self._join_undone(empty)
        self._undone = empty

    def _join_undone(self, scheduled: SchedulerOutput) -> None:
        undone, self._undone = self._undone, None
        if undone is None:
            return
        scheduled.finished_req_ids |= undone.finished_req_ids
        preempted = (scheduled.preempted_req_ids or set()) | (undone.preempted_req_ids or set())
        scheduled.preempted_req_ids = preempted
        scheduled.kv_connector_metadata = self.tier.joined(
            undone.kv_connector_metadata, scheduled.kv_connector_metadata
        )

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """Schedule the next pass; an empty schedule means no pass."""
        if self._rank is not None:
            for request in self.running:
                request.priority = self._rank(Victim.of(request))
        lost = self._preemptions
        scheduled = self._fill(throttle_prefills)
        while self._preemptions > lost and not scheduled.total_num_scheduled_tokens:
            # Every request that had got its blocks was preempted for the next one, which then was
            # preempted itself. The blocks are free now.
            lost = self._preemptions
            self.undo_empty_schedule(scheduled)
            scheduled = self._fill(throttle_prefills)
        return scheduled

    def _fill(self, throttle_prefills: bool) -> SchedulerOutput:
        scheduled: SchedulerOutput = self.batching.fill(
            self, partial(super().schedule, throttle_prefills)
        )
        self._join_undone(scheduled)
        return scheduled

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        self._preemptions += 1
        victim = self.tier.victim(request)
        blocks = self._held_blocks(request.request_id)
        shared = {name for name, block in blocks.items() if block.ref_cnt > 1}
        exclusive = [
            None if name in shared else name for name in self.blocks_of(request.request_id)
        ]
        self.carried_out = self.overflow.preempt(victim, exclusive, self.tier)
        if self.prefix_cache is not None:
            self.prefix_cache.forget_uncomputed(blocks.values(), request.num_computed_tokens)
        super()._preempt_request(request, *args, **kwargs)

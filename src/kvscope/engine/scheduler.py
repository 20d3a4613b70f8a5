"""A subclass of vLLM's scheduler that records every forward pass and applies the policies.

The engine runs in this process without asynchronous scheduling, so a pass is `schedule()` → forward
pass and sampling → `update_from_output()`. The two overridden methods bracket the forward pass; the
sampled tokens are on the host when the second one is called.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import FCFSRequestQueue, SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from kvscope.engine.batching.policy import BatchingPolicy
from kvscope.engine.clock import Clock, HostClock
from kvscope.engine.kv_groups import groups_of, in_order
from kvscope.engine.marks import Marks
from kvscope.engine.overflow.forecast import Forecast
from kvscope.engine.overflow.host_tier import scheduler_tier
from kvscope.engine.overflow.policy import OverflowPolicy
from kvscope.engine.overflow.victims import Rank
from kvscope.engine.prefix_cache import PrefixCache
from kvscope.engine.recording import PassRecord, PreemptionRecord, Recording
from kvscope.engine.scheduled import BlockTables, batch_rows, external_id
from kvscope.kv_plan import has_one_block_table
from kvscope.ranges import FORWARD_PASS

if TYPE_CHECKING:
    from kvscope.engine.attention.tracer import Tracer


class GatedQueue(FCFSRequestQueue):
    """A queue that appears empty while `admits` refuses its first request."""

    admits: Callable[[Request], bool] | None = None

    def __bool__(self) -> bool:
        return len(self) > 0 and (self.admits is None or self.admits(self[0]))


class HiddenRequests(list[Request]):
    """An empty list of running requests that is true, so that vLLM applies its watermark."""

    def __bool__(self) -> bool:
        return True


class RecordingScheduler(Scheduler):
    """The scheduler of every kvscope run; `recording` holds its records.

    The batching policy fills each pass, and may hide requests from vLLM while it does. The overflow
    policy ranks the running requests and returns the action for a preempted request's blocks.
    """

    running: list[Request]
    max_num_active_reqs: int
    max_num_running_reqs: int
    prefix_cache: PrefixCache | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.recording = Recording()
        self.marks = Marks()
        self.waiting = GatedQueue()
        self.kv_holding_waiting = GatedQueue()  # their blocks are being loaded, or have been
        self.batching = BatchingPolicy(name="")
        self.overflow = OverflowPolicy(name="")
        self.clock: Clock = HostClock()
        self.tracer: Tracer | None = None
        self.tier = scheduler_tier(self.connector)
        self.forecast = Forecast(self)
        self.watermark_when_idle = False  # vLLM has no watermark while nothing runs
        self.kept_free = 0  # blocks that must be free for a running request to go on
        self._rank: Rank | None = None
        self._hidden: list[Request] = []  # running requests that vLLM does not see
        self._finished: set[str] = set()  # reported by empty schedules
        self._preempted: set[str] = set()  # reported by empty schedules
        self._undone: SchedulerOutput | None = None  # an empty schedule that was not returned
        self._idle_since_ns: int | None = None  # every request waits for copies
        self._allocated: dict[str, int] = {}  # of running requests: tokens of the pass to come
        self._in_flight: SchedulerOutput | None = None
        self._block_tables: BlockTables | None = None  # of the pass under way, if it is traced
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
        tracer: "Tracer | None",
        rank: Rank | None = None,
    ) -> None:
        """Set the policies, the clock, the tracer, and the rank of victims, if any."""
        self.batching, self.overflow, self.clock, self.tracer = batching, overflow, clock, tracer
        self._rank = rank
        self.tier.clock = clock
        self.tier.follow(overflow, self.forecast)
        if rank is not None:  # vLLM then preempts the running request of the highest `priority`
            self.policy = SchedulingPolicy.PRIORITY

    def note_allocations(self) -> None:
        """Note the tokens that each running request has got blocks for while a pass is scheduled.

        A ranked victim may be one of them: vLLM takes it out of the pass again.
        """
        if self._rank is None:
            return
        manager = self.kv_cache_manager
        allocate = manager.allocate_slots

        def allocate_slots(request: Request, num_new_tokens: int, *args: Any, **kwargs: Any) -> Any:
            blocks = allocate(request, num_new_tokens, *args, **kwargs)
            if blocks is not None:
                self._allocated[request.request_id] = num_new_tokens
            return blocks

        manager.allocate_slots = allocate_slots

    def begin(self, recording: Recording, marks: Marks) -> None:
        """Record into `recording` from now on; its passes are numbered from 0."""
        self.recording, self.marks = recording, marks
        self._finished.clear()
        self._preempted.clear()
        self._idle_since_ns = None
        self.tier.begin(recording)

    @property
    def next_step(self) -> int:
        """The pass that is being scheduled, or is to be scheduled next."""
        return len(self.recording.passes)

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
        """The running requests, hidden ones first."""
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
        return [one for one in self.kv_holding_waiting if not self.is_loading(one)]

    def has_room(self, request: Request) -> bool:
        """Whether a waiting request that is computed from its start may be admitted.

        False if vLLM would refuse it for want of blocks, as it does in most passes of a full cache.
        With a prefix cache vLLM decides: part of the request may be there. So it does where KV
        groups differ, of which each needs blocks of its own.
        """
        if self.prefix_cache is not None or not self.one_block_table:
            return True
        manager = self.kv_cache_manager
        kept = manager.watermark_blocks if self.running or self.watermark_when_idle else 0
        needed: int = -(-request.num_tokens // self.block_size) + kept
        return needed <= self.kv_blocks_free

    def blocks_of(self, request_id: str) -> list[int | None]:
        """The block ids of a request, as `kv_groups.in_order`."""
        return in_order(self.kv_cache_manager.get_block_ids(request_id))

    def _held_blocks(self, request_id: str) -> dict[int, KVCacheBlock]:
        """The blocks that a request holds, by id."""
        groups = self.kv_cache_manager.get_blocks(request_id).blocks
        return {block.block_id: block for block in chain(*groups) if not block.is_null}

    def _by_group(self, ids: Sequence[int | None]) -> tuple[int, ...]:
        """How many of a request's blocks are of each KV group."""
        count = len(self.kv_groups)
        groups = [ids[at::count] for at in range(count)]
        return tuple(len(group) - group.count(None) for group in groups)

    def _group_blocks(self) -> tuple[int, ...]:
        """The blocks of each KV group that requests hold."""
        tables = [
            manager.req_to_blocks.values()
            for manager in self.kv_cache_manager.coordinator.single_type_managers
        ]
        return tuple(
            len({block.block_id for blocks in held for block in blocks if not block.is_null})
            for held in tables
        )

    @property
    def scheduled(self) -> Collection[str]:
        """The requests of the pass under way, by vLLM's internal ids."""
        pass_ = self._in_flight
        names: Collection[str] = () if pass_ is None else pass_.num_scheduled_tokens
        return names

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
        """Schedule the next pass and record it; an empty schedule is not a pass."""
        start_ns = self.clock.now_ns()
        if self._rank is not None:
            for request in self.running:
                request.priority = self._rank(self.forecast.now(request))
        preemptions = self.recording.preemptions
        lost = len(preemptions)
        scheduled = self._fill(throttle_prefills)
        while len(preemptions) > lost and not scheduled.total_num_scheduled_tokens:
            # Every request that had got its blocks was preempted for the next one, which then was
            # preempted itself. The blocks are free now.
            lost = len(preemptions)
            self.undo_empty_schedule(scheduled)
            scheduled = self._fill(throttle_prefills)
        if not scheduled.total_num_scheduled_tokens:
            if self._idle_since_ns is None:
                self._idle_since_ns = start_ns
            self._finished |= scheduled.finished_req_ids
            self._preempted |= scheduled.preempted_req_ids or set()
            return scheduled
        ended, self._finished = self._finished | scheduled.finished_req_ids, set()
        finished = {external_id(name) for name in ended}
        preempted, self._preempted = self._preempted | (scheduled.preempted_req_ids or set()), set()
        self._in_flight = scheduled
        # Few calls: this is vLLM's critical path.
        record = PassRecord(
            start_ns,
            0,
            finished,
            len(preempted),
            len(self.waiting),
            self._free.num_free_blocks,
            self.tier.host_blocks_used,
        )
        if self._idle_since_ns is not None:
            record.load_wait_ns = self.tier.asynchronous * (start_ns - self._idle_since_ns)
            self._idle_since_ns = None
        if not self.one_block_table:
            record.group_blocks = self._group_blocks()
        self.recording.passes.append(record)
        record.schedule_end_ns = self.clock.now_ns()
        step = len(self.recording.passes) - 1
        traced = self.tracer is not None and self.tracer.begin_pass(step)
        self._block_tables = self._tables(scheduled) if traced else None
        self.marks.push(FORWARD_PASS, step)
        return scheduled

    def _fill(self, throttle_prefills: bool) -> SchedulerOutput:
        self._allocated.clear()
        scheduled: SchedulerOutput = self.batching.fill(
            self, partial(super().schedule, throttle_prefills)
        )
        self._join_undone(scheduled)
        return scheduled

    def _tables(self, scheduled: SchedulerOutput) -> BlockTables:
        """The block managers' blocks of each scheduled request, in order."""
        managers = self.kv_cache_manager.coordinator.single_type_managers
        held = [manager.req_to_blocks for manager in managers]
        names = scheduled.num_scheduled_tokens
        return {name: tuple(blocks[name][:] for blocks in held) for name in names}

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> Any:
        """Record the end and the output of the pass, and let vLLM process it."""
        if scheduler_output is not self._in_flight:
            return super().update_from_output(scheduler_output, model_runner_output)
        self._in_flight = None
        record = self.recording.passes[-1]
        record.output_ns = self.clock.now_ns()
        if self.tracer is not None:
            self.tracer.end_pass()
        self.marks.pop()
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        record.end_ns = self.clock.now_ns()
        record.batch = partial(
            batch_rows,
            scheduler_output,
            model_runner_output,
            self._block_tables,
            self.prefix_cache.take_hits(scheduler_output) if self.prefix_cache else {},
        )
        return outputs

    def _update_waiting_for_remote_kv(self, request: Request) -> None:
        self.tier.arrived(request.request_id, self.next_step)
        super()._update_waiting_for_remote_kv(request)

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        self.recording.counted[external_id(request.request_id)] = request.num_preemptions
        if not self.has_unfinished_requests():
            self._idle_since_ns = None
        return super()._free_request(request, *args, **kwargs)

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        victim = self.tier.victim(request, self.forecast)
        blocks = self._held_blocks(request.request_id)
        shared = {name for name, block in blocks.items() if block.ref_cnt > 1}
        ids = self.blocks_of(request.request_id)
        own = [None if name in shared else name for name in ids]
        done = self.overflow.preempt(victim, own, self.tier)
        self.recording.preemptions.append(
            PreemptionRecord(
                step=self.next_step,
                time_ns=self.clock.now_ns(),
                request_id=external_id(request.request_id),
                tokens=victim.tokens,
                scheduled=self._allocated.pop(request.request_id, 0),
                blocks=len(blocks),
                group_blocks=() if self.one_block_table else self._by_group(ids),
                shared=len(shared),
                action=done.action,
                refused=done.refused,
                predicted_s=done.predicted_s,
            )
        )
        if self.prefix_cache is not None:
            self.prefix_cache.forget_uncomputed(list(blocks.values()))
        super()._preempt_request(request, *args, **kwargs)

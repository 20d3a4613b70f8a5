"""A subclass of vLLM's scheduler that records every forward pass and applies the policies.

The engine runs in this process without asynchronous scheduling, so a pass is `schedule()` → forward
pass and sampling → `update_from_output()`. The two overridden methods bracket the forward pass; the
sampled tokens are on the host when the second one is called.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import FCFSRequestQueue, SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from kvscope.actions import RECOMPUTE
from kvscope.engine.batching.policy import BatchingPolicy
from kvscope.engine.clock import Clock, HostClock
from kvscope.engine.marks import Marks
from kvscope.engine.overflow.contents import SwapChecks
from kvscope.engine.overflow.outlook import (
    Growth,
    preempted_again,
    preemptions,
    resuming_together,
)
from kvscope.engine.overflow.policy import Outlook, OverflowPolicy, Victim
from kvscope.engine.recording import PassRecord, PreemptionRecord, Recording
from kvscope.errors import BadInput
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

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.recording = Recording()
        self.marks = Marks()
        self.waiting = GatedQueue()
        self.batching = BatchingPolicy(name="")
        self.overflow = OverflowPolicy(name="")
        self.clock: Clock = HostClock()
        self.tracer: Tracer | None = None
        self.checks: SwapChecks | None = None  # while copies are checked
        self.watermark_when_idle = False  # vLLM has no watermark while nothing runs
        self.kept_free = 0  # blocks that must be free for a running request to go on
        self._ranked = False
        self._hidden: list[Request] = []  # running requests that vLLM does not see
        self._finished: set[str] = set()  # reported by empty schedules
        self._preempted: set[str] = set()  # reported by empty schedules
        self._in_flight: SchedulerOutput | None = None
        self._free = self.kv_cache_manager.block_pool.free_block_queue

    def attach(
        self,
        batching: BatchingPolicy,
        overflow: OverflowPolicy,
        clock: Clock,
        tracer: "Tracer | None",
    ) -> None:
        """Set the policies, the clock and the tracer."""
        self.batching, self.overflow, self.clock, self.tracer = batching, overflow, clock, tracer
        self._ranked = type(overflow).rank is not OverflowPolicy.rank
        if self.connector is not None:
            self.connector.saves = self._saves
        if self._ranked:  # vLLM then preempts the running request of the highest `priority`
            self.policy = SchedulingPolicy.PRIORITY

    def begin(self, recording: Recording, marks: Marks) -> None:
        """Record into `recording` from now on; its passes are numbered from 0."""
        self.recording, self.marks = recording, marks
        self._finished.clear()
        self._preempted.clear()
        if self.connector is not None:
            self.connector.transfers = recording.transfers

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
    def host_blocks_used(self) -> int:
        """Blocks that requests hold in the host pool now."""
        return self.connector.host_blocks_used if self.connector is not None else 0

    @property
    def host_blocks_total(self) -> int:
        """Blocks of the host pool; 0 without one."""
        return self.connector.host_blocks_total if self.connector is not None else 0

    @property
    def host_pool_facts(self) -> dict[str, int]:
        """The entries of run.json on the host pool's size."""
        none = {"host_blocks_total": 0}
        return self.connector.pool_facts if self.connector is not None else none

    def swapped_out(self, request: Request) -> bool:
        """Whether a preempted request's tokens are kept in the host pool."""
        return self.connector is not None and request.request_id in self.connector

    def has_room(self, request: Request) -> bool:
        """Whether a waiting request that is computed from its start may be admitted.

        False if vLLM would refuse it for want of blocks, as it does in most passes of a full cache.
        """
        manager = self.kv_cache_manager
        kept = manager.watermark_blocks if self.running or self.watermark_when_idle else 0
        needed: int = -(-request.num_tokens // self.block_size) + kept
        return needed <= self.kv_blocks_free

    def blocks_of(self, request_id: str) -> list[int]:
        """The block ids of a request, in order."""
        blocks: list[int] = self.kv_cache_manager.get_block_ids(request_id)[0]
        return blocks

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
        try:
            yield
        finally:
            self.waiting.admits = None

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
        """Return the finished and preempted ids that an empty schedule consumed to the next one."""
        self.finished_req_ids |= empty.finished_req_ids
        self.reset_preempted_req_ids |= empty.preempted_req_ids or set()

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """Schedule the next pass and record it; an empty schedule is not a pass."""
        start_ns = self.clock.now_ns()
        if self._ranked:
            for request in self.running:
                request.priority = self.overflow.rank(victim_of(request))
        scheduled = self.batching.fill(self, partial(super().schedule, throttle_prefills))
        if not scheduled.total_num_scheduled_tokens:
            self._finished |= scheduled.finished_req_ids
            self._preempted |= scheduled.preempted_req_ids or set()
            return scheduled
        finished, self._finished = self._finished | scheduled.finished_req_ids, set()
        preempted, self._preempted = self._preempted | (scheduled.preempted_req_ids or set()), set()
        self._in_flight = scheduled
        # Few calls: this is vLLM's critical path.
        record = PassRecord(
            start_ns,
            0,
            scheduled,
            finished,
            len(preempted),
            len(self.waiting),
            self._free.num_free_blocks,
            self.host_blocks_used,
        )
        self.recording.passes.append(record)
        record.schedule_end_ns = self.clock.now_ns()
        step = len(self.recording.passes) - 1
        if self.tracer is not None and self.tracer.begin_pass(step):
            record.block_tables = self._block_tables(scheduled)
        self.marks.push(FORWARD_PASS, step)
        return scheduled

    def _block_tables(self, scheduled: SchedulerOutput) -> dict[str, list[Any]]:
        """The block manager's blocks of each scheduled request, in order."""
        blocks = self.kv_cache_manager.coordinator.single_type_managers[0].req_to_blocks
        return {name: blocks[name][:] for name in scheduled.num_scheduled_tokens}

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
        record.output = model_runner_output
        record.end_ns = self.clock.now_ns()
        return outputs

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        self.recording.counted[request.request_id] = request.num_preemptions
        return super()._free_request(request, *args, **kwargs)

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        victim = self._victim(request)
        blocks = self.blocks_of(request.request_id)
        action = self.overflow.action(victim) if victim.tokens else RECOMPUTE
        if action.needs_pool and self.connector is None:
            raise BadInput(
                f"overflow={self.overflow.name} returns the action {action.name!r}, which copies "
                "blocks, but it has no host pool; make its class a subclass of Swap"
            )
        kept = self.connector is not None and self.connector.keep(
            action, victim.request_id, victim.tokens, blocks
        )
        refused = action.needs_pool and not kept
        if kept and self.checks is not None:
            if action.rebuilds:
                self.checks.record_rebuild(victim.request_id, victim.tokens // self.block_size)
            else:
                self.checks.record_swap_out(victim.request_id, -(-victim.tokens // self.block_size))
        self.recording.preemptions.append(
            PreemptionRecord(
                step=len(self.recording.passes),
                time_ns=self.clock.now_ns(),
                request_id=victim.request_id,
                tokens=victim.tokens,
                blocks=len(blocks),
                action=RECOMPUTE if refused else action,
                refused=refused,
                predicted_s=self.overflow.predicted_s(victim, action) if victim.tokens else None,
            )
        )
        super()._preempt_request(request, *args, **kwargs)

    def _saves(self, request_id: str) -> bool:
        """Whether the policy writes the activations of a request of this pass, its first, through.

        Called while the pass is scheduled, when the request runs already.
        """
        running = [*self._hidden, *self.running]
        ahead = [growth_of(one) for one in takewhile(lambda r: r.request_id != request_id, running)]
        request, size = self.requests[request_id], self.block_size
        own, blocks = growth_of(request), self.kv_blocks_total - self.kept_free
        room, free = self.connector.pool.size, self.connector.activations.free
        victims = (
            replace(
                victim_of(request),
                tokens=tokens,
                beside=len(ahead),
                again=self._preempted_again([one.after(passes) for one in ahead], tokens),
                room=tokens <= room * size,
                activations=tokens <= free * size,
            )
            for tokens, passes in preemptions(ahead, own, size, blocks)
        )
        return self.overflow.saves(Outlook(own, tuple(victims)))

    def _victim(self, request: Request) -> Victim:
        """A request that is preempted, with what the host pool has or has room for."""
        victim, connector = victim_of(request), self.connector
        if connector is None:
            return victim
        beside = [one for one in (*self._hidden, *self.running) if one is not request]
        ahead = [growth_of(one) for one in beside]
        queue = (one.num_tokens for one in self.waiting if not self.swapped_out(one))
        return replace(
            victim,
            beside=len(beside),
            together=resuming_together(
                ahead,
                [request.num_tokens, *islice(queue, self.max_num_running_reqs)],
                self.block_size,
                self.kv_blocks_total - self.kept_free,
                self.max_num_scheduled_tokens,
                self.max_num_running_reqs,
            ),
            again=self._preempted_again(ahead, victim.tokens),
            room=connector.has_room(victim.tokens),
            activations=connector.has_activations(victim.request_id, victim.tokens),
        )

    def _preempted_again(self, ahead: Sequence[Growth], tokens: int) -> int:
        """How often a victim is preempted at once if it is recomputed: never by today's rules."""
        if not self.kept_free:
            return 0
        watermark = self.kv_cache_manager.watermark_blocks
        return preempted_again(ahead, tokens, self.block_size, self.kv_blocks_total, watermark)


def growth_of(request: Request) -> Growth:
    """The tokens of a request in the cache: soon, and at its end. Its last token is not cached."""
    return Growth(request.num_tokens, request.num_prompt_tokens + request.max_tokens - 1)


def victim_of(request: Request) -> Victim:
    """The view of a running request that overflow policies get."""
    return Victim(
        request_id=request.request_id,
        prompt_tokens=request.num_prompt_tokens,
        output_tokens=request.num_output_tokens,
        tokens=request.num_computed_tokens,
        preemptions=request.num_preemptions,
    )

"""Fills the `Recording` of a repeat with what is observed of the scheduler of kvscope's own runs.

The engine runs in this process without asynchronous scheduling, so a pass is `schedule()` → forward
pass and sampling → `update_from_output()`; the sampled tokens are on the host when the second one
is called. Rows are made of what vLLM made for a pass once nothing is timed.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

from kvscope.engine.added import AddedRecorders
from kvscope.engine.clock import Clock
from kvscope.engine.marks import Marks
from kvscope.engine.observer import Loss, ObservedPass, Recorder, SchedulerObserver
from kvscope.engine.recording import PassRecord, PreemptionRecord, Recording
from kvscope.engine.request_ids import external_id
from kvscope.engine.vllm.cached_blocks import CachedBlocks
from kvscope.engine.vllm.scheduled import BlockTables, batch_rows

if TYPE_CHECKING:
    from kvscope.engine.vllm.scheduler import PolicyScheduler
    from kvscope.plan.tracing import PassTracer


class RunRecorder(Recorder):
    """Records one engine, and notifies its tracer, if any, when passes begin and end."""

    observer: SchedulerObserver

    def __init__(self, clock: Clock, tracer: "PassTracer | None" = None) -> None:
        self.clock, self.tracer = clock, tracer
        self.recording = Recording()
        self.marks = Marks()
        self._block_tables: BlockTables | None = None  # of the pass under way, if it is traced
        self._allocated: dict[str, int] = {}  # by ranked requests: tokens of the pass to come

    def observe(self, scheduler: "PolicyScheduler") -> None:
        """Observe a scheduler; call this after all other wrapping of its methods."""
        self._scheduler = scheduler
        self._free = scheduler.kv_cache_manager.block_pool.free_block_queue
        self.observer = observer = SchedulerObserver(scheduler, self, self.clock.now_ns, self.marks)
        if scheduler.tier.asynchronous:
            observer.follow(scheduler, "_update_waiting_for_remote_kv", before=self._loaded)
        if scheduler.ranks:
            observer.follow(scheduler.kv_cache_manager, "allocate_slots", after=self._allocates)
        if scheduler.prefix_cache is not None:
            CachedBlocks(self, observer)
        self._added = AddedRecorders(scheduler, self.clock.now_ns)

    def begin(self, recording: Recording, marks: Marks) -> None:
        """Record into `recording` from now on; its passes are numbered from 0."""
        self.recording, self.marks = recording, marks
        self.observer.begin(marks)
        self._scheduler.tier.begin(recording)
        self._added.begin(recording)

    # ------------------------------------------------------------------ what is observed

    def _loaded(self, _: int, request: Any) -> None:
        """VLLM has noticed that what it loads for a request is there."""
        self._scheduler.tier.arrived(request.request_id, self.observer.step)

    def _allocates(
        self, _: int, blocks: Any, request: Any, num_new_tokens: int, *__: Any, **___: Any
    ) -> None:
        """A request has got blocks for tokens of the pass that is being scheduled.

        A ranked victim may be one of them: vLLM takes it out of the pass again.
        """
        if blocks is not None:
            self._allocated[request.request_id] = num_new_tokens

    def begin_schedule(self) -> None:
        """A schedule begins."""
        self._allocated.clear()

    def scheduled(self, one: ObservedPass) -> None:
        """Add the record of a pass."""
        scheduler = self._scheduler
        tier = scheduler.tier
        # Few calls: this is vLLM's critical path.
        record = PassRecord(
            one.start_ns,
            one.end_ns,
            [external_id(name) for name in one.ended],
            one.preempted,
            len(scheduler.waiting),
            self._free.num_free_blocks,
            tier.host_blocks_used,
        )
        if one.idle_since_ns is not None and tier.asynchronous:
            record.load_wait_ns = one.start_ns - one.idle_since_ns
        if not scheduler.one_block_table:
            record.group_blocks = scheduler.group_blocks()
        self.recording.passes.append(record)
        if self.tracer is not None:
            traced = self.tracer.begin_pass(one.step)
            self._block_tables = self._tables(one.scheduled) if traced else None

    def _tables(self, scheduled: Any) -> BlockTables:
        """The block managers' blocks of each scheduled request, in order."""
        managers = self._scheduler.kv_cache_manager.coordinator.single_type_managers
        by_request = [manager.req_to_blocks for manager in managers]
        names = scheduled.num_scheduled_tokens
        return {name: tuple(blocks[name][:] for blocks in by_request) for name in names}

    def computed(self, one: ObservedPass, output: Any) -> None:
        """A pass is over."""
        if self.tracer is not None:
            self.tracer.end_pass()

    def sampled(self, one: ObservedPass, output_ns: int, output: Any, given: Any) -> None:
        """Complete the record of a pass."""
        record = self.recording.passes[one.step]
        record.output_ns, record.end_ns = output_ns, self.clock.now_ns()
        record.batch = partial(batch_rows, one.scheduled, output, self._block_tables, one.found)

    def preempted(self, loss: Loss) -> None:
        """Add the record of a preemption."""
        scheduler, name = self._scheduler, loss.request.request_id
        done = scheduler.carried_out
        self.recording.preemptions.append(
            PreemptionRecord(
                step=loss.step,
                time_ns=loss.time_ns,
                request_id=external_id(name),
                tokens=loss.tokens,
                scheduled=self._allocated.pop(name, 0),
                blocks=sum(loss.group_blocks),
                group_blocks=() if scheduler.one_block_table else tuple(loss.group_blocks),
                shared=loss.shared,
                action=done.action,
                refused=done.refused,
                predicted_s=done.predicted_s,
            )
        )

    def ended(self, time_ns: int, request: Any) -> None:
        """Note how often a request was preempted."""
        self.recording.counted[external_id(request.request_id)] = request.num_preemptions

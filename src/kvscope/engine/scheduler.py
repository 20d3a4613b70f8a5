"""vLLM's own scheduler, observed: every decision stays vLLM's, what it decided is noted.

The engine runs in this process and without asynchronous scheduling, so that one pass is
`schedule()` → forward pass and sampling → `update_from_output()`, and the two calls seen here
bracket the forward pass; the sampled tokens are on the host when the second one is made.
"""

from time import perf_counter_ns
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from kvscope.engine.marks import Marks
from kvscope.engine.recording import PassRecord, PreemptionRecord, Recording
from kvscope.ranges import FORWARD_PASS


class RecordingScheduler(Scheduler):
    """The scheduler of every kvscope run; `recording` holds what it has seen."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.recording = Recording()
        self.marks = Marks()
        self._finished: set[str] = set()
        self._in_flight: SchedulerOutput | None = None

    def begin(self, recording: Recording, marks: Marks) -> None:
        """Note into `recording` from now on; its passes are numbered from 0."""
        self.recording, self.marks = recording, marks
        self._finished.clear()

    @property
    def kv_blocks_total(self) -> int:
        """Blocks that requests can use; vLLM keeps one more, the null block, for itself."""
        return int(self.kv_cache_manager.block_pool.num_gpu_blocks) - 1

    @property
    def kv_blocks_used(self) -> int:
        """Blocks that requests hold now."""
        return self.kv_blocks_total - int(self.kv_cache_manager.block_pool.get_num_free_blocks())

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """Let vLLM schedule, and note what it scheduled; empty schedules are no passes."""
        start_ns = perf_counter_ns()
        scheduled = super().schedule(*args, **kwargs)
        self._finished |= scheduled.finished_req_ids
        if not scheduled.total_num_scheduled_tokens:
            return scheduled
        record = PassRecord(
            schedule_start_ns=start_ns,
            schedule_end_ns=0,
            scheduled=scheduled,
            finished_before=frozenset(self._finished),
            waiting=self.get_request_counts()[1],
            kv_blocks_used=self.kv_blocks_used,
        )
        self._finished.clear()
        self._in_flight = scheduled
        passes = self.recording.passes
        passes.append(record)
        record.schedule_end_ns = perf_counter_ns()
        self.marks.push(FORWARD_PASS, len(passes) - 1)
        return scheduled

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> Any:
        """Note when the pass ended and what it gave, and let vLLM take it in."""
        if scheduler_output is not self._in_flight:
            return super().update_from_output(scheduler_output, model_runner_output)
        self._in_flight = None
        record = self.recording.passes[-1]
        record.output_ns = perf_counter_ns()
        self.marks.pop()
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        record.output = model_runner_output
        record.end_ns = perf_counter_ns()
        return outputs

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        blocks = self.kv_cache_manager.get_block_ids(request.request_id)[0]
        self.recording.preemptions.append(
            PreemptionRecord(
                step=len(self.recording.passes),
                time_ns=perf_counter_ns(),
                request_id=request.request_id,
                tokens=request.num_computed_tokens,
                blocks=len(blocks),
            )
        )
        super()._preempt_request(request, *args, **kwargs)

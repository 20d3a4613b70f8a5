"""`prefill_first`: a forward pass prefills or decodes, never both, and prefill comes first.

vLLM 0.4.2's default. Waiting prompts that fit make a pass of their own while the running requests
pause; if none fits, the running requests decode. A request whose blocks lie in the host pool has
nothing to prefill: it joins a decode pass, and while it waits at the head no prompt is let in.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import FCFSRequestQueue
from vllm.v1.request import Request

from kvscope.engine.batching.policy import BatchingPolicy
from kvscope.engine.scheduler import RecordingScheduler


class GatedQueue(FCFSRequestQueue):
    """A queue that looks empty while `admits` refuses its head."""

    admits: Callable[[Request], bool] | None = None

    def __bool__(self) -> bool:
        return len(self) > 0 and (self.admits is None or self.admits(self[0]))


class Paused(list[Request]):
    """No running requests to schedule, although some run: vLLM keeps its watermark then."""

    def __bool__(self) -> bool:
        return True


class PrefillFirstScheduler(RecordingScheduler):
    """vLLM's scheduler, shown only the waiting requests, or only the running ones."""

    running: list[Request]
    max_num_active_reqs: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.waiting = GatedQueue()

    def fill(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """Prefill waiting prompts if any fits, else decode."""
        if len(self.waiting) and not self.swapped_out(self.waiting[0]):
            with self._running_hidden(), self._admitting(lambda r: not self.swapped_out(r)):
                scheduled = super().fill(throttle_prefills)
            if scheduled.total_num_scheduled_tokens:
                return scheduled
            self._take_back(scheduled)
        with self._admitting(self.swapped_out):
            return super().fill(throttle_prefills)

    @contextmanager
    def _admitting(self, admits: Callable[[Request], bool]) -> Iterator[None]:
        self.waiting.admits = admits
        try:
            yield
        finally:
            self.waiting.admits = None

    @contextmanager
    def _running_hidden(self) -> Iterator[None]:
        paused, limit = self.running, self.max_num_active_reqs
        self.running = Paused() if paused else []
        self.max_num_active_reqs = limit - len(paused)
        try:
            yield
        finally:
            self.running = [*paused, *self.running]
            self.max_num_active_reqs = limit

    def _take_back(self, empty: SchedulerOutput) -> None:
        """What an empty schedule took from the scheduler's books is for the next one."""
        self.finished_req_ids |= empty.finished_req_ids
        self.reset_preempted_req_ids |= empty.preempted_req_ids or set()


class PrefillFirst(BatchingPolicy):
    """vLLM 0.4.2's order, by vLLM's present scheduler."""

    scheduler = PrefillFirstScheduler

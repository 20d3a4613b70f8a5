"""`prefill_first`: a forward pass prefills or decodes, never both, and prefill comes first.

vLLM 0.4.2's default. Waiting prompts that fit make a pass of their own while the running requests
pause; if none fits, the running requests decode. A request whose blocks lie in the host pool has
nothing to prefill: it joins a decode pass, and while it waits at the head no prompt is admitted.
"""

from collections.abc import Callable
from typing import Any

from kvscope.engine.batching.policy import BatchingPolicy, Requests


class PrefillFirst(BatchingPolicy):
    """vLLM 0.4.2's order, by vLLM's present scheduler, shown a part of the requests."""

    def fill(self, scheduler: Requests, schedule: Callable[[], Any]) -> Any:
        """Prefill waiting prompts if any fits, else decode."""
        swapped_out = scheduler.swapped_out
        if len(scheduler.waiting) and not swapped_out(scheduler.waiting[0]):
            with scheduler.hide_running(), scheduler.admit_only(lambda r: not swapped_out(r)):
                scheduled = schedule()
            if scheduled.total_num_scheduled_tokens:
                return scheduled
            scheduler.undo_empty_schedule(scheduled)
        with scheduler.admit_only(swapped_out):
            return schedule()

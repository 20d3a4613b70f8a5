"""`prefill_first`: a forward pass prefills or decodes, never both, and prefill comes first.

This is the default of vLLM 0.4.2. Waiting prompts that fit make a separate pass while the running
requests pause; if none fits, the running requests decode. A request whose tokens are in the host
pool or in the prefix cache, or were loaded, has nothing to prefill: it joins a decode pass, and
while it is the first waiting request, no prompt is admitted.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

from kvscope.engine.batching.policy import BatchingPolicy, Requests


class PrefillFirst(BatchingPolicy):
    """The order of vLLM 0.4.2, made by vLLM's present scheduler on a part of the requests."""

    cuts_prompts: ClassVar[Literal["never"]] = "never"
    mixes_phases: ClassVar[bool] = False

    def fill(self, scheduler: Requests, schedule: Callable[[], Any]) -> Any:
        """Prefill waiting prompts if any fits, else decode.

        A schedule that computes nothing may order copies: these are part of the next one.
        """
        decodes_next = scheduler.decodes_next
        if self._may_prefill(scheduler):
            with scheduler.hide_running(), scheduler.admit_only(lambda r: not decodes_next(r)):
                scheduled = schedule()
            if scheduled.total_num_scheduled_tokens:
                return scheduled
            scheduler.undo_empty_schedule(scheduled)
        with scheduler.admit_only(decodes_next):
            return schedule()

    def _may_prefill(self, scheduler: Requests) -> bool:
        """Whether vLLM might admit a prompt: with a full cache it would refuse most of them."""
        if any(not scheduler.decodes_next(request) for request in scheduler.loaded):
            return True
        first = scheduler.waiting[0] if len(scheduler.waiting) else None
        return first is not None and not scheduler.decodes_next(first) and scheduler.has_room(first)

"""Parts of a vLLM server that a recorder uses: its schedulers, when they are made, and its log.

Nothing of vLLM is imported with this module: it is part of every process of a recorded server.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

LOGGER = "vllm.kvscope"
"""A logger whose messages vLLM shows like its own."""

SCHEDULERS = (
    "vllm.v1.core.sched.scheduler.Scheduler",
    "vllm.v1.core.sched.async_scheduler.AsyncScheduler",
)
"""vLLM's own schedulers, as recordings name them."""

_MARK = "_kvscope_records"


def on_construction(begin: Callable[[Any], None]) -> None:
    """Have every scheduler that vLLM makes in this process given to `begin`; done once."""
    # Imported here because vLLM loads plugins while it is being imported itself.
    from vllm.v1.core.sched.scheduler import Scheduler

    if hasattr(Scheduler, _MARK):
        return
    original = Scheduler.__init__

    @wraps(original)
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        begin(self)

    Scheduler.__init__ = construct
    setattr(Scheduler, _MARK, True)

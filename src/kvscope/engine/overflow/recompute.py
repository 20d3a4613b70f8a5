"""`recompute`: a preempted request loses its blocks and its tokens are computed again."""

from typing import ClassVar

from kvscope.engine.overflow.policy import OverflowPolicy
from kvscope.plan.actions import RECOMPUTE


class Recompute(OverflowPolicy):
    """Recompute every victim, as vLLM does by itself."""

    only_action: ClassVar[str | None] = RECOMPUTE.name
    resumes_at_once: ClassVar[bool] = True

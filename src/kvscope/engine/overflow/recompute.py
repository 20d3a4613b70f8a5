"""`recompute`: a preempted request loses its blocks and its tokens are computed again."""

from kvscope.engine.overflow.policy import OverflowPolicy


class Recompute(OverflowPolicy):
    """Recompute every victim, as vLLM does by itself."""

"""`recompute`: a preempted request loses its blocks and its tokens are computed again."""

from kvscope.engine.overflow.policy import OverflowPolicy


class Recompute(OverflowPolicy):
    """vLLM's own behaviour."""

"""`recompute`: a preempted request loses its blocks and is computed again."""

from kvscope.engine.overflow.policy import OverflowPolicy


class Recompute(OverflowPolicy):
    """vLLM's own way, with nothing added."""

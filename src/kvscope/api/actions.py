"""Actions of overflow policies on the blocks of preempted requests."""

from kvscope.actions import action

__all__ = ["action"]

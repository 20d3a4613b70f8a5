"""What overflow policies do with the blocks of preempted requests."""

from kvscope.actions import action

__all__ = ["action"]

"""Nsight Systems: `profiler` finds and probes it, `capture` exports its reports."""

from kvscope.run import capture, profiler

__all__ = ["capture", "profiler"]

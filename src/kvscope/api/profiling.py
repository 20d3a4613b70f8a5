"""Nsight Systems: `profiler` and `capture`.

`profiler` has `find_nsys`, which gives `Nsys`, and `NO_PERF_EVENTS`; `capture` has `export`, which
makes an export of a report without its secrets.
"""

from kvscope.run import capture, profiler

__all__ = ["capture", "profiler"]

"""Nsight Systems: running it, and reading exports of its versions.

- `profiler` has `find_nsys`, which gives `Nsys`, and `NO_PERF_EVENTS`
- `capture` has `export`, which makes an export of a report without its secrets
- `RenamedColumns`: columns that another version calls otherwise
"""

from kvscope.collect.nsys.renames import RenamedColumns
from kvscope.run import capture, profiler

__all__ = ["RenamedColumns", "capture", "profiler"]

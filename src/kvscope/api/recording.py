"""Watching a scheduler of vLLM as it works, in the process of an engine or of a server.

`observer` has `SchedulerObserver`, which wraps the scheduler's methods, and what it calls: a
`Recorder`, whose methods are a `Take` each, of an `ObservedPass` or a `Loss`. `marks` has `Marks`
and `NvtxMarks`, which push NVTX ranges around them, `ranges` the name of the outermost, `REPEAT`.
"""

from kvscope.base import ranges
from kvscope.engine import marks, observer

__all__ = ["marks", "observer", "ranges"]

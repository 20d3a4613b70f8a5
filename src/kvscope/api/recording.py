"""Watching a scheduler of vLLM as it works, in the process of an engine or of a server.

`observer` has `SchedulerObserver`, which wraps the scheduler's methods, and what it calls: a
`Recorder`, whose methods are a `Take` each, of an `ObservedPass` or a `Loss`. `Marks` and
`NvtxMarks` push NVTX ranges around them, `ranges` has the name of the outermost, `REPEAT`.
"""

from kvscope import ranges
from kvscope.engine import observer
from kvscope.engine.marks import Marks, NvtxMarks

__all__ = ["Marks", "NvtxMarks", "observer", "ranges"]

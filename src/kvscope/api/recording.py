"""Watching a scheduler of vLLM as it works, in the process of an engine or of a server.

`observer` wraps the scheduler's methods; `Marks` and `NvtxMarks` push the NVTX ranges around them,
which `ranges` names.
"""

from kvscope import ranges
from kvscope.engine import observer
from kvscope.engine.marks import Marks, NvtxMarks

__all__ = ["Marks", "NvtxMarks", "observer", "ranges"]

"""Records of a run, made of files that something else wrote.

A `Collector` recognises a directory and makes its records: `rows` are what an engine tells of its
passes, of which `recorder` makes tables; `stalls` finds passes that a stalled host prolonged,
`evidence` says what the records hold, `runfile` writes run.json.
"""

from kvscope import evidence, runfile, stalls
from kvscope.collect.foreign import Collector
from kvscope.engine import recording as rows
from kvscope.run import recorder

__all__ = ["Collector", "evidence", "recorder", "rows", "runfile", "stalls"]

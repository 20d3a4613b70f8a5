"""Tracing of KV events, which a package brings.

- `tracing`: `Tracing`, which it registers, with its `EventsOnDisk`
- `events`: `EventRecorder`, the base class of what records those of a run, of whose repeats it is
  given the `RepeatTables`
"""

from kvscope.plan import tracing
from kvscope.run import events

__all__ = ["events", "tracing"]

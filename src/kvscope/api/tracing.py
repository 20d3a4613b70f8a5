"""Tracing of KV events: what an engine's device makes of the passes that are traced.

- `tracer`: `Tracer`, the base class of a device's, and its `TracedPass`
- `flush`: `Launch`, the records of one kernel, each column of which is a `Column`
- `clock`: `TickClock`, the base class of the clock that events are stamped with, and its
  `ClockSample`
"""

from kvscope.engine.attention import clock, flush, tracer

__all__ = ["clock", "flush", "tracer"]

"""Engines: what a run asks of one, of the device that it runs on, and what it tells.

The methods and attributes of an engine are those of `kvscope.engine.port.Engine`. `rows` are what
it tells: a `Recording` of `PassRecord` with `ScheduledRequest` (`NO_COUNTS` where it counts nothing
else), `PreemptionRecord`, `Transfer` with `Job`, `BlockHit` and `BlockEviction` of `CachedBlock`.

`VirtualPlatform` is the base of devices on which vLLM schedules on a `VirtualClock` alone.
"""

from kvscope.engine import recording as rows
from kvscope.engine.devices.platform import Platform
from kvscope.engine.devices.virtual.clock import VirtualClock
from kvscope.engine.devices.virtual.platform import VirtualPlatform
from kvscope.engine.port import Finished

__all__ = ["Finished", "Platform", "VirtualClock", "VirtualPlatform", "rows"]

"""Devices as planning knows them: their settings, limits and speed.

- `decisions`: a `Decision` of a device's engine on a value of a `Draft` of an experiment, whatever
  is asked for; `Decisions` by key
"""

from kvscope.plan import decisions
from kvscope.plan.device import Device, Kernels, Speed

__all__ = ["Device", "Kernels", "Speed", "decisions"]

"""Devices as planning knows them: their settings, limits and speed.

`TOKEN` is what requests are given on a device that computes nothing of the model.
"""

from kvscope.plan.device import Device, Kernels, Speed
from kvscope.plan.devices.dry import TOKEN

__all__ = ["TOKEN", "Device", "Kernels", "Speed"]

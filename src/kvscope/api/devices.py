"""Devices as planning knows them: their settings, limits, speed, and what their runs have.

`evidence` has the kinds: `ALL` of them, and `KV_GROUPS`. `TOKEN` is what requests are given on a
device that computes nothing of the model.
"""

from kvscope import evidence
from kvscope.plan.device import Device, Kernels, Speed
from kvscope.plan.devices.dry import TOKEN

__all__ = ["TOKEN", "Device", "Kernels", "Speed", "evidence"]

"""The environment that kvscope is installed in."""

from kvscope.packages import device

__all__ = ["device"]

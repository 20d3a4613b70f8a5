"""Running experiments on modeled devices.

`batch` has `run_alone` of a `Job` for each experiment, which gives an exit code.
"""

from kvscope import batch

__all__ = ["batch"]

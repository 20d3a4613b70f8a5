"""Numbers with intervals.

`statistics`: `Interval`, a number with its 95 % confidence interval; `bootstrap_interval` of one,
from fits to bootstrap samples.
"""

from kvscope.base import statistics

__all__ = ["statistics"]

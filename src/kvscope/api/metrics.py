"""Metrics of a run, which a package registers, and numbers with intervals.

- `metric`: a `Metric`, a number of one repeat of a run, which its own `metric` makes of a function
- `statistics`: `Interval`, a number with its 95 % confidence interval; `bootstrap_interval` of one,
  from fits to bootstrap samples
"""

from kvscope.base import statistics
from kvscope.metrics import metric

__all__ = ["metric", "statistics"]

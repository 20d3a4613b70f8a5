"""Metrics of a run, which a package registers.

`metric`: a `Metric`, a number of one repeat of a run, which its own `metric` makes of a function.
"""

from kvscope.metrics import metric

__all__ = ["metric"]

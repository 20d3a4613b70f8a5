"""The collect stage: all that was recorded of a run, as tables on one timeline."""

from kvscope.collect.collector import collect_nsys, collect_run

__all__ = ["collect_nsys", "collect_run"]

"""Experiments as they were planned, and the requests of their workloads.

`requests` has `build`, which gives each `Request` of an experiment.
"""

from kvscope.plan.experiment import Experiment
from kvscope.workload import requests

__all__ = ["Experiment", "requests"]

"""Experiments as they were planned."""

from kvscope.plan.experiment import Experiment

__all__ = ["Experiment"]

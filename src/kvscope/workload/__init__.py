"""Workloads: the requests an experiment hands to the engine."""

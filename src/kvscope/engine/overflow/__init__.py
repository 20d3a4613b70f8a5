"""Overflow policies: what is done with a preempted request's blocks. One file per policy."""

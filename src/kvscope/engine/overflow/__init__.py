"""Overflow policies: what becomes of a preempted request's blocks. One policy a file."""

"""Shared parts of devices without a worker: the virtual clock, and the protocol of costs."""

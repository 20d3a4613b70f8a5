"""Attention kernels that record KV events, and the tracer that takes these to a run's file."""

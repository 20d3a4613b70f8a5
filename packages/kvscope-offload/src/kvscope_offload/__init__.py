"""Throughput-oriented inference with weights and cache in host memory, behind a slow link.

Part of the context of each request may be kept as activations (the inputs of attention) instead of
K and V; K and V are rebuilt from them while the link carries the rest. `overflow` does the same for
preempted requests in vLLM's engine.
"""

"""Attention kernels, and the KV events that they record; `engine.vllm.attention` runs them."""

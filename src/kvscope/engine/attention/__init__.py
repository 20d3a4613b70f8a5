"""Attention in place of vLLM's, and the KV events that it records."""

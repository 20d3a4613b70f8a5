"""Overflow policies on vLLM's own KV connectors: `native` and `native_full`."""

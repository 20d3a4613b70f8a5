"""Pages of kvscope-model: predicted passes, and where a KV cache has its bytes."""

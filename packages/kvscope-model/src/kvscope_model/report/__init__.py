"""What kvscope-model shows: predicted passes on a page, and where a KV cache has its bytes."""

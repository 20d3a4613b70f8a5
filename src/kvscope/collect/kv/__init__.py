"""KV events: raw flushes read, placed on the host's clock, and written as tables."""

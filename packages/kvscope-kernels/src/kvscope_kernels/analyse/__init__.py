"""KV events of a run in numbers: metrics of accesses and of reuse."""

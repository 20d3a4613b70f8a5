"""KV events: attention kernels that record them, their tables, oracles, metrics and figures."""

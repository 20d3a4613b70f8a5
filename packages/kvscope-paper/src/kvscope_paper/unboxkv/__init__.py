"""Import of what the UnBoxKV-IO artifact published: series of logs, and kernel traces."""

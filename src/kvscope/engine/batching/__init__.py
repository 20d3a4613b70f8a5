"""Batching policies: the requests and tokens of a forward pass. One file per policy."""

"""Batching policies: what a forward pass is filled with. One policy a file."""

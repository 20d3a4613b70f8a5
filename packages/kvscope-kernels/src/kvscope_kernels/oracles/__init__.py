"""Oracles of KV events: they hold each flush against the batch of its pass."""

"""The oracles of KV events: what must hold of every traced run."""

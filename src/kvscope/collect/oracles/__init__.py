"""The oracles of KV events: properties that hold of every traced run."""

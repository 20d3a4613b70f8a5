"""Overflow policies of vLLM that keep the inputs of attention on the host.

`activation` keeps those of every token; `adaptive` takes, of each victim, the cheapest of
recompute, swap and activation. Only `connector` imports vLLM.
"""

"""Computed and moved tokens of a run, as the cost model of `device=modeled` takes them."""

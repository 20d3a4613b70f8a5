"""What a run computes and moves, as the cost model of `device=modeled` takes it."""

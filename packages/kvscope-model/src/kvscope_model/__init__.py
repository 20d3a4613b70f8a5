"""Hardware as numbers: `device=modeled`, what fits and predicts its costs, `kvscope bytes`."""

"""The commands, and what the Snakefile calls."""

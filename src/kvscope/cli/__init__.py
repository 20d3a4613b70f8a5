"""The commands, what the Snakefile calls, and what `make env` checks."""

"""The collect stage: all that was recorded of a run, as tables on one timeline."""

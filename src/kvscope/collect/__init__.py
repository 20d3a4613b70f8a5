"""The collect stage: all records of a run, as tables on one timeline."""

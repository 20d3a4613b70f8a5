"""Published results of experiments, as data with provenance, and their typed reader."""

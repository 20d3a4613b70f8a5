"""The analyse stage: the metrics of a run, and its validity."""

"""Whether a run is sound: the twin's replay, the oracles, and the verdict on each run."""

"""The plan stage: the experiments of a study."""

"""95 % intervals of a number by fits to bootstrap samples."""

from collections.abc import Sequence

import numpy as np

PERCENTILES = (2.5, 97.5)  # between which 95 % lie


def bootstrap_interval(value: float, samples: Sequence[float]) -> tuple[float, float]:
    """The interval of 95 % of what fits to bootstrap samples give, widened to the value itself.

    A bootstrap of a curved model is biased: its samples may all lie on one side of the value, which
    a percentile interval would then exclude.
    """
    low, high = np.percentile(samples, PERCENTILES).tolist()
    return min(low, value), max(high, value)

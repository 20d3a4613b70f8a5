"""Independent random streams, so that a change of one property of a workload shifts no other."""

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """The purpose of a random stream; the numbers must not change."""

    LENGTHS = 0
    TOKENS = 1
    ARRIVALS = 2


def stream(seed: int, purpose: Purpose, index: int = 0) -> np.random.Generator:
    """The random stream of this seed, purpose and index."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(purpose, index)))

"""Independent random streams, so that changing one thing about a workload shifts no other."""

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What a stream is for; a number, once given, stays."""

    LENGTHS = 0
    TOKENS = 1
    ARRIVALS = 2


def stream(seed: int, purpose: Purpose, index: int = 0) -> np.random.Generator:
    """The random stream of this seed, purpose and index."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(purpose, index)))

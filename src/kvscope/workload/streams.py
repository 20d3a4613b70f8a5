"""Independent random streams, so that a change of one property of a workload shifts no other."""

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """The purpose of a random stream; the numbers must not change."""

    LENGTHS = 0
    TOKENS = 1
    ARRIVALS = 2
    TEXTS = 3
    CONVERSATIONS = 4


def stream(seed: int, purpose: Purpose, *index: int) -> np.random.Generator:
    """The random stream of this seed, purpose and index (numbers of at least 0; 0 if none)."""
    key = (purpose, *(index or (0,)))
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))

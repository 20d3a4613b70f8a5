"""Zipf: short requests are likelier than long ones.

The generator of Gray et al., "Quickly Generating Billion-Record Synthetic Databases" (SIGMOD
1994), as the published study of KV caches under concurrency used it (its request_generator.py):
with its seed 1234 and θ 0.6 this gives the very request lists in its logs. Two peculiarities are
kept for that: sums run to n - 1 (so ζ(2) = 1), and numbers come from NumPy's legacy stream.
"""

import numpy as np

from kvscope.plan.experiment import Zipf
from kvscope.workload.lengths import Lengths, split


def lengths(workload: Zipf, seed: int) -> list[Lengths]:
    """Draw total lengths in [min_tokens, max_tokens] and split each by the ratio."""
    draws = np.random.RandomState(seed).random_sample(workload.num_requests)
    items = workload.max_tokens - workload.min_tokens + 1
    ranks = zipf_ranks(draws, items, workload.theta)
    return [split(workload.min_tokens + r, workload.prompt_to_output_ratio) for r in ranks]


def zipf_ranks(draws: np.ndarray, items: int, theta: float) -> list[int]:
    """Ranks in [0, items) of uniform draws u in [0, 1).

    Rank 0 if u ζ(n) < 1, else 1 if u ζ(n) < 1 + 2^-θ, else ⌊n (ηu - η + 1)^(1 / (1 - θ))⌋ with
    η = (1 - (2/n)^(1 - θ)) / (1 - ζ(2)/ζ(n)).
    """
    if items < 3:
        return [min(int(u * items), items - 1) for u in draws]  # η is 0/0: take them as even
    zeta_n = _zeta(items, theta)
    eta = (1 - (2 / items) ** (1 - theta)) / (1 - _zeta(2, theta) / zeta_n)
    ranks = []
    for u in draws.tolist():
        if u * zeta_n < 1:
            ranks.append(0)
        elif u * zeta_n < 1 + 0.5**theta:
            ranks.append(1)
        else:
            rank = int(items * (eta * u - eta + 1) ** (1 / (1 - theta)))
            ranks.append(min(rank, items - 1))  # the base rounds to 1 for u just below 1
    return ranks


def _zeta(count: int, theta: float) -> float:
    """Σ i^-θ for i from 1 to count - 1."""
    total = 0.0
    for i in range(1, count):  # in this order: the last bits decide borderline draws
        total += 1 / i**theta
    return total

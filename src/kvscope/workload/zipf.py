"""`zipf`: short requests are more likely than long ones.

The generator of Gray et al., "Quickly Generating Billion-Record Synthetic Databases" (SIGMOD 1994),
as in the artifact of the published study of KV caches under concurrency (its request_generator.py).
With its seed 1234 and θ = 0.6 it reproduces the request lists of its logs. Two peculiarities of the
artifact are kept: sums run to n - 1 (so ζ(2) = 1), and numbers come from NumPy's legacy generator.
"""

from typing import Annotated

import numpy as np
from pydantic import Field

from kvscope.plan.fields import Label, Real
from kvscope.plan.workload import Lengths, split_total
from kvscope.workload.uniform import Uniform


class Zipf(Uniform):
    """Total lengths by Zipf's law with exponent `theta`, split by the ratio."""

    theta: Annotated[Real, Field(gt=0, lt=1), Label("Zipf exponent")]

    def lengths(self, seed: int) -> list[Lengths]:
        """The lengths, drawn from NumPy's legacy generator."""
        draws = np.random.RandomState(seed).random_sample(self.num_requests)
        ranks = zipf_ranks(draws, self.max_tokens - self.min_tokens + 1, self.theta)
        return [split_total(self.min_tokens + rank, self.prompt_to_output_ratio) for rank in ranks]

    @property
    def mean_tokens(self) -> float:
        """The expected total length for a density x^-θ of ranks.

        The true mean of the generator is up to a third higher for θ near 1.
        """
        share = (1 - self.theta) / (2 - self.theta)
        return self.min_tokens + share * (self.max_tokens - self.min_tokens)


def zipf_ranks(draws: np.ndarray, items: int, theta: float) -> list[int]:
    """Ranks in [0, items) of uniform draws u in [0, 1).

    Rank 0 if u ζ(n) < 1, else 1 if u ζ(n) < 1 + 2^-θ, else ⌊n (ηu - η + 1)^(1 / (1 - θ))⌋ with
    η = (1 - (2/n)^(1 - θ)) / (1 - ζ(2)/ζ(n)).
    """
    if items < 3:
        return [min(int(u * items), items - 1) for u in draws]  # η would be 0/0: draw uniformly
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

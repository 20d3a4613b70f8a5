"""Mini-batches whose transfer and computation take the same time.

While one mini-batch is computed the next one is loaded, so a step takes the sum over mini-batches
of the longer of the two. Requests differ in what they keep where; packing those that load much with
those that compute much brings the two together.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple


class Effort(NamedTuple):
    """Seconds that a request, or a mini-batch, takes of link and device in one layer."""

    link_s: float
    device_s: float

    @property
    def imbalance_s(self) -> float:
        """Seconds by which the link is busy longer than the device."""
        return self.link_s - self.device_s


def in_order(count: int, groups: int) -> list[list[int]]:
    """Requests 0 … count-1 in order, in so many groups, whose sizes differ by one at the most."""
    groups = max(1, min(groups, count))
    size, more = divmod(count, groups)
    bounds = [i * size + min(i, more) for i in range(groups + 1)]
    return [list(range(a, b)) for a, b in pairwise(bounds)]


def balanced(efforts: Sequence[Effort], groups: int) -> list[list[int]]:
    """Groups as large as those of `in_order`, never less balanced than those.

    Greedy: the most unbalanced request first, each to the group that it brings nearest to balance.
    """
    plain = in_order(len(efforts), groups)
    room = [len(group) for group in plain]
    target = sum(e.imbalance_s for e in efforts) / max(1, len(efforts))
    formed: list[list[int]] = [[] for _ in plain]
    sums = [0.0] * len(plain)
    by_weight = sorted(range(len(efforts)), key=lambda i: -abs(efforts[i].imbalance_s - target))
    for i in by_weight:
        excess = efforts[i].imbalance_s - target
        open_ = [g for g in range(len(plain)) if len(formed[g]) < room[g]]
        chosen = min(open_, key=lambda g: (abs(sums[g] + excess) - abs(sums[g]), len(formed[g])))
        formed[chosen].append(i)
        sums[chosen] += excess
    formed = [sorted(group) for group in formed]
    return min((plain, formed), key=lambda groups: imbalance_s(efforts, groups))


def imbalance_s(efforts: Sequence[Effort], groups: Sequence[Sequence[int]]) -> float:
    """Seconds by which link and device differ, over all groups."""
    return sum(abs(sum(efforts[i].imbalance_s for i in group)) for group in groups)

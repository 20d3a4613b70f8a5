"""Split of the context into kinds of blocks: the closed form that balances link and device.

What is kept of a token is on a ladder: K and V; its activation, if that is smaller; nothing but its
id. Each rung down loads fewer bytes and takes more work. Of n tokens in a batch let a share s be
one rung down from the others; a pool on the device holds `device_bytes` of what is kept. Per layer
the link is busy for

    L(s) = t_weights + max(0, n (bytes + s (bytes below - bytes)) - device_bytes) / B

and the device for D(s) = n (work + s (work below - work)) + t_forward. L falls and D rises on the
way down: the step, max(L, D), is shortest where they meet, or on a rung. Each rung saves fewer
bytes for the same work than the one before, so no split over three rungs is shorter. Where a block
lies does not matter, as the pool saves the same bytes of the link whichever it holds. With grouped
queries activations are not smaller than K and V: then ids come next. A prefix of the tokens is
computed again from its ids, with attention among them, which is quadratic in their number.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import nsmallest
from math import inf
from typing import Protocol

from kvscope_offload.cost import CostModel, Sizes


@dataclass(frozen=True)
class Split:
    """Shares of the context tokens that are kept as activations, and as nothing but ids."""

    activation: float = 0.0
    token: float = 0.0

    @property
    def kv(self) -> float:
        """The share that is kept as K and V."""
        return 1.0 - self.activation - self.token


@dataclass(frozen=True)
class Ladder:
    """Splits from the most bytes to the least; a position is between two of its rungs."""

    rungs: tuple[Split, ...]

    @classmethod
    def of(cls, sizes: Sizes) -> "Ladder":
        """K and V, activations if they are smaller, ids."""
        activations = (Split(activation=1.0),) * (sizes.activation_bytes < sizes.kv_bytes)
        return cls((Split(), *activations, Split(token=1.0)))

    @property
    def end(self) -> float:
        """The last position: that of its lowest rung."""
        return float(len(self.rungs) - 1)

    def at(self, position: float) -> Split:
        """The split at a position: 0.3 is three tenths of the way from the first rung down."""
        rung = min(int(position), len(self.rungs) - 2)
        above, below, part = *self.rungs[rung : rung + 2], position - rung
        return Split(
            above.activation + part * (below.activation - above.activation),
            above.token + part * (below.token - above.token),
        )

    def position(self, split: Split) -> float:
        """Place of a split of two neighbouring rungs on the ladder."""
        return split.activation + self.end * split.token

    def first(self, holds: Callable[[Split], bool]) -> float:
        """The first position from which on something holds; the last one if it nowhere does."""
        if holds(self.at(0.0)):
            return 0.0
        places = range(round(self.end * FINE))
        return bisect_left(places, True, key=lambda i: holds(self.at(i / FINE))) / FINE


@dataclass(frozen=True)
class Demand:
    """Workload of a decoding step, per layer: requests, context tokens, memory.

    `streamed` says whether the layer's weights come over the link. `host_bytes` bounds what the
    host may hold of the cache; None is no bound.
    """

    requests: int
    tokens: int
    minibatches: int = 1
    device_bytes: float = 0.0
    host_bytes: float | None = None
    streamed: bool = True


class Trial(Protocol):
    """A batch on which a split can be tried, in whole blocks."""

    def fits(self, split: Split) -> bool:
        """True if device and host hold the batch to its end."""

    def trial_s(self, split: Split) -> float:
        """Seconds of decoding; inf if it does not fit."""


FINE = 2**40  # parts of a rung, of which the place of a meeting is one
SWEEP = 5  # parts of a rung that are tried …
HALVINGS = 5  # … then halves of them around the best ones, so often
BEST = 2  # so many
WORTH = 0.01  # of a step: less is not worth leaving the closed form for


def link_s(cost: CostModel, demand: Demand, split: Split) -> float:
    """Seconds that the link is busy in one layer."""
    loaded = max(0.0, _kept_bytes(cost, demand, split) - demand.device_bytes)
    weights = cost.link(cost.sizes.weight_bytes) if demand.streamed else 0.0
    return weights + cost.link.slope_s * loaded


def device_s(cost: CostModel, demand: Demand, split: Split) -> float:
    """Seconds that the device computes in one layer."""
    parts = demand.minibatches
    rebuilt = parts * cost.rebuild(demand.tokens * split.activation / parts)
    again = parts * cost.recompute(demand.tokens * split.token / parts)
    pairs = (demand.tokens * split.token) ** 2 / (2 * demand.requests)
    return rebuilt + again + parts * cost.causal(pairs / parts) + forward_s(cost, demand)


def forward_s(cost: CostModel, demand: Demand) -> float:
    """Seconds of one layer's forward pass of the newest tokens."""
    parts = demand.minibatches
    return parts * (cost.forward(demand.requests / parts) + cost.attend(demand.tokens / parts))


def step_s(cost: CostModel, demand: Demand, split: Split) -> float:
    """Seconds of one layer where link and device work side by side without a gap."""
    return max(link_s(cost, demand, split), device_s(cost, demand, split))


def best(cost: CostModel, demand: Demand) -> Split:
    """The split of the shortest step; of equally short ones that with the least work.

    Where products have a fixed time, the first of a rung's tokens may cost more than they save: the
    rungs themselves are compared with the meeting, if there is room for them.
    """
    ladder = Ladder.of(cost.sizes)
    least = ladder.first(lambda split: _has_room(cost, demand, split))
    meeting = ladder.first(
        lambda split: (
            link_s(cost, demand, split) <= device_s(cost, demand, split)
            or _kept_bytes(cost, demand, split) <= demand.device_bytes
        )
    )
    positions = {least, max(least, meeting), *map(ladder.position, ladder.rungs)}
    possible = [ladder.at(position) for position in sorted(positions) if position >= least]
    return min(possible, key=lambda split: step_s(cost, demand, split))


def in_whole_blocks(closed: Split, cost: CostModel, trial: Trial) -> Split:
    """Split of the closed form, unless another is shorter on trial by a worthwhile part.

    The closed form divides a batch as if it were of one piece. There are whole blocks of requests
    in few mini-batches, which need not come to the same. Tried are that split, the one at which the
    memory is full and parts of each rung, then what lies between the best of them.
    """
    ladder = Ladder.of(cost.sizes)
    least, start = ladder.first(trial.fits), ladder.position(closed)
    seconds: dict[float, float] = {}

    def attempt(positions: Iterable[float]) -> None:
        for position in positions:
            if 0 <= position <= ladder.end and position not in seconds:
                seconds[position] = trial.trial_s(ladder.at(position))

    attempt((least, start, *(part / SWEEP for part in range(round(ladder.end * SWEEP) + 1))))
    for halving in range(1, HALVINGS + 1):
        step = 1 / SWEEP / 2**halving
        near = nsmallest(BEST, seconds, key=seconds.__getitem__)
        attempt(position + side for position in near for side in (-step, step))
    shortest = min(seconds, key=seconds.__getitem__)
    worth = seconds[shortest] < (1 - WORTH) * seconds.get(start, inf)
    return ladder.at(shortest if worth else start)


def _has_room(cost: CostModel, demand: Demand, split: Split) -> bool:
    """True if device and host hold the blocks of the split."""
    room = None if demand.host_bytes is None else demand.host_bytes + demand.device_bytes
    return room is None or _kept_bytes(cost, demand, split) <= room


def _kept_bytes(cost: CostModel, demand: Demand, split: Split) -> float:
    sizes = cost.sizes
    return demand.tokens * (split.kv * sizes.kv_bytes + split.activation * sizes.activation_bytes)

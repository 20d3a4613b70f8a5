"""How much of the context to keep as what: the closed form that balances link and device.

Of n tokens in a batch let x be kept as activations, the others as K and V; a pool on the device
holds `device_bytes` of either. Per layer the link is busy for

    L(x) = t_weights + max(0, n s_kv - x (s_kv - s_act) - device_bytes) / B

and the device for D(x) = x r + t_forward. L falls and D rises in x: the step, max(L, D), is
shortest where they meet, or at an end. Where a block lies does not matter for x, as the pool saves
the same bytes of the link whichever it holds. If activations are not smaller than K and V (grouped
queries), x is 0, and a prefix of the tokens may be computed again from their ids instead, with
attention among them, which is quadratic in their number.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt

from kvscope.offload.cost import CostModel, Line


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
class Demand:
    """What a step of decoding works on, per layer: requests, context tokens, memory.

    `streamed` says whether the layer's weights come over the link. `host_bytes` bounds what the
    host may hold of the cache; None is no bound.
    """

    requests: int
    tokens: int
    minibatches: int = 1
    device_bytes: float = 0.0
    host_bytes: float | None = None
    streamed: bool = True


Trial = Callable[[Split], float]  # seconds of a step in whole blocks; inf where they do not fit

SWEEP = 10  # parts of the context, of which none to all are tried beside the closed form's share
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
    """The split of the shortest step; of equally short ones that with the least recompute.

    Where products have a fixed time, the smallest share may cost more than it saves: then it is
    none, if the host has room for K and V alone.
    """
    if cost.sizes.activation_bytes < cost.sizes.kv_bytes:
        met = Split(activation=_activations(cost, demand))
    else:
        met = Split(token=_tokens(cost, demand))
    alone = Split()
    if not _has_room(cost, demand, alone):
        return met
    return min((alone, met), key=lambda split: step_s(cost, demand, split))


def in_whole_blocks(closed: Split, cost: CostModel, trial: Trial) -> Split:
    """The closed form's split, unless one of a sweep is shorter on trial by what is worth it.

    The closed form divides a batch as if it were of one piece. There are whole blocks of requests
    in few mini-batches, which need not come to the same.
    """
    shares = [part / SWEEP for part in range(SWEEP + 1)]
    smaller = cost.sizes.activation_bytes < cost.sizes.kv_bytes
    sweep = [Split(activation=share) if smaller else Split(token=share) for share in shares]
    seconds = {split: trial(split) for split in sweep}
    shortest = min(sweep, key=lambda split: seconds[split])
    return shortest if seconds[shortest] < (1 - WORTH) * trial(closed) else closed


def _has_room(cost: CostModel, demand: Demand, split: Split) -> bool:
    """Whether device and host hold what the split keeps."""
    room = None if demand.host_bytes is None else demand.host_bytes + demand.device_bytes
    return room is None or _kept_bytes(cost, demand, split) <= room


def _kept_bytes(cost: CostModel, demand: Demand, split: Split) -> float:
    sizes = cost.sizes
    return demand.tokens * (split.kv * sizes.kv_bytes + split.activation * sizes.activation_bytes)


def _activations(cost: CostModel, demand: Demand) -> float:
    """The share x / n at which link and device meet."""
    sizes = cost.sizes
    saved_bytes = sizes.kv_bytes - sizes.activation_bytes
    return _meeting(cost, demand, saved_bytes, cost.rebuild, square_s=0.0)


def _tokens(cost: CostModel, demand: Demand) -> float:
    """The share of a prefix, computed again with attention among its tokens, at which they meet."""
    square_s = cost.causal.slope_s * demand.tokens**2 / (2 * demand.requests)
    fixed_s = cost.recompute.fixed_s + cost.causal.fixed_s
    again = replace(cost.recompute, fixed_s=fixed_s)
    return _meeting(cost, demand, cost.sizes.kv_bytes, again, square_s)


def _meeting(
    cost: CostModel, demand: Demand, saved_bytes: int, work: Line, square_s: float
) -> float:
    """The share s at which link and device are busy for the same time, within what is possible.

    A token that is not kept as K and V saves so many bytes of the link and costs `work` of the
    device: link(0) - s saved = device(0) + s work + s^2 square. Beyond the share at which all that
    is left lies on the device nothing is saved; below that at which the host is full nothing fits.
    """
    n, rate_s = demand.tokens, cost.link.slope_s
    excess_bytes = max(0.0, n * cost.sizes.kv_bytes - demand.device_bytes)
    fixed_s = demand.minibatches * work.fixed_s
    slack_s = link_s(cost, demand, Split()) - device_s(cost, demand, Split()) - fixed_s
    slope_s = n * (work.slope_s + saved_bytes * rate_s)
    share = 0.0
    if slack_s > 0:  # the larger root, in the form that loses no digits
        share = 2 * slack_s / (slope_s + sqrt(slope_s**2 + 4 * square_s * slack_s))
    share = min(share, excess_bytes / (n * saved_bytes))
    if demand.host_bytes is not None:
        share = max(share, (excess_bytes - demand.host_bytes) / (n * saved_bytes))
    return min(1.0, max(0.0, share))

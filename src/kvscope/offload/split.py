"""How much of the context to keep as what: the closed form that balances link and device.

Of n tokens in a batch let x be kept as activations, the others as K and V; a pool on the device
holds `device_bytes` of either. Per layer the link is busy for

    L(x) = t_weights + max(0, n s_kv - x (s_kv - s_act) - device_bytes) / B

and the device for D(x) = x r + t_forward. L falls and D rises in x: the step, max(L, D), is
shortest where they meet, or at an end. Where a block lies does not matter for x, as the pool saves
the same bytes of the link whichever it holds. If activations are not smaller than K and V (grouped
queries), x is 0, and a prefix of the tokens may be computed again from their ids instead.
"""

from dataclasses import dataclass

from kvscope.offload.cost import CostModel


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


def link_s(cost: CostModel, demand: Demand, split: Split) -> float:
    """Seconds that the link is busy in one layer."""
    sizes = cost.sizes
    kept = demand.tokens * (split.kv * sizes.kv_bytes + split.activation * sizes.activation_bytes)
    loaded = max(0.0, kept - demand.device_bytes)
    weights = cost.link(sizes.weight_bytes) if demand.streamed else 0.0
    return weights + cost.link.slope_s * loaded


def device_s(cost: CostModel, demand: Demand, split: Split) -> float:
    """Seconds that the device computes in one layer."""
    parts = demand.minibatches
    rebuilt = parts * cost.rebuild(demand.tokens * split.activation / parts)
    again = parts * cost.recompute(demand.tokens * split.token / parts)
    return rebuilt + again + forward_s(cost, demand)


def forward_s(cost: CostModel, demand: Demand) -> float:
    """Seconds of one layer's forward pass of the newest tokens."""
    parts = demand.minibatches
    return parts * (cost.forward(demand.requests / parts) + cost.attend(demand.tokens / parts))


def step_s(cost: CostModel, demand: Demand, split: Split) -> float:
    """Seconds of one layer where link and device work side by side without a gap."""
    return max(link_s(cost, demand, split), device_s(cost, demand, split))


def best(cost: CostModel, demand: Demand) -> Split:
    """The split of the shortest step; of equally short ones that with the least recompute."""
    if cost.sizes.activation_bytes < cost.sizes.kv_bytes:
        return _shorter(cost, demand, Split(), Split(activation=_activations(cost, demand)))
    return _shorter(cost, demand, Split(), Split(token=_tokens(cost, demand)))


def _shorter(cost: CostModel, demand: Demand, *splits: Split) -> Split:
    """A product's fixed time may make the smallest share cost more than it saves."""
    if demand.host_bytes is not None:
        return splits[-1]
    return min(splits, key=lambda split: step_s(cost, demand, split))


def _activations(cost: CostModel, demand: Demand) -> float:
    """The share x / n at which link and device meet."""
    sizes, n = cost.sizes, demand.tokens
    saved = sizes.kv_bytes - sizes.activation_bytes
    excess = max(0.0, n * sizes.kv_bytes - demand.device_bytes)
    share = _meeting(
        cost,
        demand,
        excess_s=excess * cost.link.slope_s,
        fixed_s=demand.minibatches * cost.rebuild.fixed_s,
        slope_s=n * (cost.rebuild.slope_s + saved * cost.link.slope_s),
    )
    share = min(share, excess / (n * saved))  # beyond this all is on the device
    if demand.host_bytes is not None:
        share = max(share, (excess - demand.host_bytes) / (n * saved))
    return min(1.0, max(0.0, share))


def _tokens(cost: CostModel, demand: Demand) -> float:
    """The share of a prefix, computed again, at which link and device meet."""
    sizes, n = cost.sizes, demand.tokens
    excess = max(0.0, n * sizes.kv_bytes - demand.device_bytes)
    share = _meeting(
        cost,
        demand,
        excess_s=excess * cost.link.slope_s,
        fixed_s=demand.minibatches * cost.recompute.fixed_s,
        slope_s=n * (cost.recompute.slope_s + sizes.kv_bytes * cost.link.slope_s),
    )
    share = min(share, excess / (n * sizes.kv_bytes))
    if demand.host_bytes is not None:
        share = max(share, (excess - demand.host_bytes) / (n * sizes.kv_bytes))
    return min(1.0, max(0.0, share))


def _meeting(
    cost: CostModel, demand: Demand, excess_s: float, fixed_s: float, slope_s: float
) -> float:
    """The share at which weights + excess - (share of link) = forward + (share of device)."""
    weights = cost.link(cost.sizes.weight_bytes) if demand.streamed else 0.0
    slack = weights + excess_s - forward_s(cost, demand) - fixed_s
    return slack / slope_s

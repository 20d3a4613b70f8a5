"""What preempting a request costs by the cost model, without what other requests change."""

from kvscope.actions import Action
from kvscope.plan.hardware.overflow_cost import OverflowCost


def swap_s(cost: OverflowCost, tokens: int) -> float:
    """To copy K and V of a request's tokens out and in."""
    blocks = -(-tokens // cost.block_size)
    return sum(cost.swap_s(blocks, 1, way)[0] for way in ("out", "in"))


def rebuild_s(cost: OverflowCost, tokens: int) -> float:
    """To fetch the activations of a request's tokens, and rebuild K and V."""
    return cost.fetch_s(-(-tokens // cost.block_size), 1)[0] + cost.rebuild_s(tokens)


def action_s(cost: OverflowCost, action: Action, tokens: int) -> float:
    """What an action costs for a request with so many tokens in the cache, if it runs alone."""
    if action.copies:
        return swap_s(cost, tokens)
    return rebuild_s(cost, tokens) if action.rebuilds else cost.recompute_s(tokens, 0)

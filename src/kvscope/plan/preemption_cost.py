"""Cost of preempting a request by the cost model, ignoring changes to other requests."""

from collections.abc import Callable
from functools import cache

from kvscope.plan.actions import Action, action
from kvscope.plan.costs import PreemptionCosts, cost_model, rebuild_s, swap_s
from kvscope.plan.parts import Conditions
from kvscope.plan.policy import Overflow


def costs_of(overflow: Overflow, experiment: Conditions) -> PreemptionCosts:
    """The costs of preemptions in an experiment, on the hardware that a policy's settings name."""
    return cost_model().costs(experiment, *overflow.cost_hardware)


def preemption_cost(overflow: Overflow, experiment: Conditions) -> Callable[[int], float]:
    """A function: the seconds that preempting a request of so many tokens costs if it runs alone.

    By it `victim=cheapest` chooses.
    """
    cost, action_of = costs_of(overflow, experiment), overflow.action_alone(experiment)

    @cache
    def seconds(tokens: int) -> float:
        return action_s(cost, action(action_of(tokens)), tokens) if tokens else 0.0

    return seconds


def action_s(cost: PreemptionCosts, done: Action, tokens: int) -> float:
    """Cost of an action for a request with so many tokens in the cache that runs alone."""
    if done.copies:
        return swap_s(cost, tokens)
    return rebuild_s(cost, tokens) if done.rebuilds else cost.recompute_s(tokens, 0)

"""What preempting a request costs by the cost model, without what other requests change."""

from collections.abc import Callable
from functools import cache

from kvscope.actions import Action, action
from kvscope.plan.devices.modeled import Modeled
from kvscope.plan.hardware import hardware as data
from kvscope.plan.hardware.hardware import Hardware
from kvscope.plan.hardware.overflow_cost import OverflowCost
from kvscope.plan.parts import Conditions
from kvscope.plan.policy import Overflow


def cost_model(overflow: Overflow, experiment: Conditions) -> OverflowCost:
    """The cost model of a policy in an experiment: that of the modeled device."""
    device = experiment.device
    today = Modeled.model_validate({"name": "modeled", "kernels": "vllm"})
    modeled = device if isinstance(device, Modeled) else today
    return modeled.cost(_numbers(overflow, experiment), experiment)


def _numbers(overflow: Overflow, experiment: Conditions) -> Hardware:
    """The numbers of the hardware that a policy's cost model is of."""
    device, (hardware, constants) = experiment.device, overflow.cost_hardware
    if isinstance(device, Modeled) and not hardware:
        return device.numbers
    found = data.read(hardware or device.name)
    return Hardware.model_validate({**found.model_dump(), **constants})


def preemption_cost(overflow: Overflow, experiment: Conditions) -> Callable[[int], float]:
    """A function: the seconds that preempting a request of so many tokens costs if it runs alone.

    By it `victim=cheapest` chooses.
    """
    cost, action_of = cost_model(overflow, experiment), overflow.action_alone(experiment)

    @cache
    def seconds(tokens: int) -> float:
        return action_s(cost, action(action_of(tokens)), tokens) if tokens else 0.0

    return seconds


def swap_s(cost: OverflowCost, tokens: int) -> float:
    """To copy K and V of a request's tokens out and in."""
    blocks = -(-tokens // cost.block_size)
    return sum(cost.swap_s(blocks, 1, way)[0] for way in ("out", "in"))


def rebuild_s(cost: OverflowCost, tokens: int) -> float:
    """To fetch the activations of a request's tokens, and rebuild K and V."""
    return cost.fetch_s(-(-tokens // cost.block_size), 1)[0] + cost.rebuild_s(tokens)


def action_s(cost: OverflowCost, done: Action, tokens: int) -> float:
    """What an action costs for a request with so many tokens in the cache, if it runs alone."""
    if done.copies:
        return swap_s(cost, tokens)
    return rebuild_s(cost, tokens) if done.rebuilds else cost.recompute_s(tokens, 0)

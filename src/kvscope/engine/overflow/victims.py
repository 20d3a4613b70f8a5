"""Selection of victims: ranks of running requests by `overflow.victim`; the highest is
preempted."""

from collections.abc import Callable, Mapping

from kvscope.engine.overflow.policy import OverflowPolicy, Victim
from kvscope.engine.request_ids import external_id
from kvscope.plan.parts import Conditions
from kvscope.plan.policy import CHEAPEST, LAST, RANDOM, drawn
from kvscope.plan.preemption_cost import preemption_cost

Rank = Callable[[Victim], float]

RANKS: Mapping[str, Rank] = {
    "first": lambda request: -request.arrival,
    "longest": lambda request: request.prompt_tokens + request.output_tokens,
    "shortest": lambda request: -(request.prompt_tokens + request.output_tokens),
    "least_computed": lambda request: -request.tokens,
    "most_computed": lambda request: request.tokens,
}


def rank_of(policy: OverflowPolicy, experiment: Conditions) -> Rank | None:
    """The rank by which a policy chooses victims; None where vLLM chooses the last request."""
    if policy.ranks_itself():
        return policy.rank
    if policy.victim == LAST:
        return None
    if policy.victim == CHEAPEST:
        seconds = preemption_cost(policy, experiment)
        return lambda request: -seconds(request.tokens)
    if policy.victim == RANDOM:
        seed = experiment.seed
        return lambda request: drawn(seed, external_id(request.request_id), request.tokens)
    return RANKS[policy.victim]

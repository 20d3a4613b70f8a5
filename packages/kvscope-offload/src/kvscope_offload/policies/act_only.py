"""`act_only`: all of the context is kept as activations, K and V are rebuilt in every step."""

from kvscope_offload.cost import CostModel
from kvscope_offload.policy import OffloadPolicy
from kvscope_offload.split import Demand, Split, Trial


class ActOnly(OffloadPolicy):
    """Half the bytes of K and V for multi-head attention, the most recompute."""

    def split(self, cost: CostModel, demand: Demand, trial: Trial) -> Split:
        """All context is kept as activations."""
        return Split(activation=1.0)

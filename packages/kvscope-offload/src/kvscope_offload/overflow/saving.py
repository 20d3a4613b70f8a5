"""The base class of policies that write the activations of tokens through to the host."""

from collections.abc import Sequence
from typing import ClassVar

from kvscope.api.models import Model
from kvscope.api.policies import overflow
from kvscope.api.settings import Conditions
from kvscope.api.tables import actions, kv_plan
from kvscope_offload.overflow.victims import Outlook

ACTIVATION = actions.Action(
    "activation", keeps=True, rebuilds=True, lost="kept as activations", resumed="rebuilt"
)
NOTED = 2  # times that a pass's activations are on the GPU: as noted, and stacked for the copy


class Saving(overflow.Swap):
    """The host has pools of K and V, of activations, or both, as `engine_arguments` says."""

    connector: ClassVar[str] = "kvscope_offload.overflow.connector:ActivationConnector"

    def refusal(self, groups: Sequence[kv_plan.KvGroup]) -> str:
        """The layers of one group take their activations together."""
        return kv_plan.unless_one_block_table(groups, f"overflow={self.name}")

    def noted_bytes(self, experiment: Conditions) -> int:
        """Bytes of the inputs of attention of a pass, over all layers: noted, and in one piece."""
        tokens = experiment.engine.max_num_batched_tokens
        return NOTED * tokens * Model.of(experiment).activation_bytes_per_token

    def saves(self, outlook: Outlook) -> bool:
        """True if there is a pool: activations of a request that begins are written through.

        A request begins again if it is recomputed.
        """
        return True

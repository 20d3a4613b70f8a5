"""`activation`: a preempted request's K and V are rebuilt from the inputs of its attention."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from kvscope.actions import ACTIVATION, Action
from kvscope.engine.overflow.policy import Victim
from kvscope.engine.overflow.swap import Swap, blocks_of
from kvscope.kv_plan import KvGroup, unless_one_block_table
from kvscope.plan.fields import impossible
from kvscope.plan.parts import Conditions
from kvscope.plan.policy import HostPools

NOTED = 2  # times that a pass's activations are on the GPU: as noted, and stacked for the copy


def noted_bytes(experiment: Conditions) -> int:
    """Bytes of the activations of a pass's tokens, over all layers."""
    tokens = experiment.engine.max_num_batched_tokens
    return tokens * experiment.model.activation_bytes_per_token


class Activation(Swap):
    """Keep the activations of every token on the host as it is computed; free a victim's blocks.

    The keys are those of `swap`: the pool holds activations in place of K and V. A victim whose
    activations found no room is recomputed.
    """

    connector: ClassVar[str] = "kvscope.engine.vllm.connectors.activation:ActivationConnector"

    @classmethod
    def host_pools(
        cls, settings: Mapping[str, Any], block_bytes: HostPools, found: HostPools
    ) -> HostPools | None:
        """Blocks of activations: as stated, or as many as fit."""
        return HostPools(activations=blocks_of(settings, block_bytes.activations))

    def engine_arguments(self, host_blocks: int) -> dict[str, Any]:
        """All of the pool is for activations."""
        arguments = super().engine_arguments(host_blocks)
        settings = arguments["kv_transfer_config"]["kv_connector_extra_config"]
        settings |= {"host_blocks": 0, "activation_blocks": host_blocks}
        return arguments

    def refusal(self, groups: Sequence[KvGroup]) -> str:
        """The layers of one group take their activations together."""
        return unless_one_block_table(groups, f"overflow={self.name}")

    def pool_block_bytes(self, experiment: Conditions) -> int:
        """Bytes of the activations of a block's tokens."""
        return experiment.cache.block_size * experiment.model.activation_bytes_per_token

    def staging_bytes(self, experiment: Conditions) -> int:
        """The inputs of attention of a pass, over all layers: noted, and in one piece to copy."""
        return NOTED * noted_bytes(experiment)

    def check(self, experiment: Conditions) -> None:
        """Refuse a model whose activations are larger than its K and V."""
        model = experiment.model
        ours, theirs = model.activation_bytes_per_token, model.kv_bytes_per_token
        if ours > theirs:
            raise impossible(
                f"overflow=activation keeps {ours:,} bytes a token of model={model.name}, whose K "
                f"and V have {theirs:,}, since model.kv_heads ({model.kv_heads}) are shared by "
                f"model.attention_heads ({model.attention_heads}); use overflow=swap",
                "overflow",
            )
        super().check(experiment)

    def action(self, victim: Victim) -> Action:
        """ACTIVATION for every victim."""
        return ACTIVATION

"""`activation`: a preempted request's K and V are rebuilt from the inputs of its attention."""

from collections.abc import Mapping
from typing import Any, ClassVar

from kvscope.api.models import Model
from kvscope.api.policies import overflow
from kvscope.api.settings import Conditions, impossible
from kvscope.api.tables import actions
from kvscope_offload.overflow.saving import ACTIVATION, Saving


class Activation(Saving):
    """Keep the activations of every token on the host as it is computed; free a victim's blocks.

    The keys are those of `swap`: the pool holds activations in place of K and V. A victim whose
    activations found no room is recomputed.
    """

    only_action: ClassVar[str | None] = ACTIVATION.name
    stages_passes: ClassVar[bool] = True

    @classmethod
    def host_pools(
        cls,
        settings: Mapping[str, Any],
        block_bytes: overflow.HostPools,
        found: overflow.HostPools,
    ) -> overflow.HostPools | None:
        """Blocks of activations: as stated, or as many as fit."""
        return overflow.HostPools(inputs=overflow.blocks_of(settings, block_bytes.inputs))

    def engine_arguments(self, host_blocks: int) -> dict[str, Any]:
        """All of the pool is for activations."""
        arguments = super().engine_arguments(host_blocks)
        settings = arguments["kv_transfer_config"]["kv_connector_extra_config"]
        settings |= {"host_blocks": 0, "activation_blocks": host_blocks}
        return arguments

    def pool_block_bytes(self, experiment: Conditions) -> int:
        """Bytes of the activations of a block's tokens."""
        return experiment.cache.block_size * Model.of(experiment).activation_bytes_per_token

    def staging_bytes(self, experiment: Conditions) -> int:
        """The inputs of attention of a pass."""
        return self.noted_bytes(experiment)

    def check(self, experiment: Conditions) -> None:
        """Refuse a model whose activations are larger than its K and V."""
        model = Model.of(experiment)
        ours, theirs = model.activation_bytes_per_token, model.kv_bytes_per_token
        if ours > theirs:
            raise impossible(
                f"overflow=activation keeps {ours:,} bytes a token of model={model.name}, whose K "
                f"and V have {theirs:,}, since model.kv_heads ({model.kv_heads}) are shared by "
                f"model.attention_heads ({model.attention_heads}); use overflow=swap",
                "overflow",
            )
        super().check(experiment)

    def action(self, victim: overflow.Victim) -> actions.Action:
        """ACTIVATION for every victim."""
        return ACTIVATION

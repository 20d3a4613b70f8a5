"""The planner's view of batching and overflow policies."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from kvscope.plan.option import Option
from kvscope.plan.parts import Conditions


class Batching(Option):
    """A batching policy: selects the requests and tokens of each forward pass."""

    @property
    def pass_tokens(self) -> int | None:
        """The token budget of a pass; None if only the engine's limit applies."""
        return None


class HostPools(NamedTuple):
    """Of the host pool of K and V, and of that of activations: blocks, or bytes of a block."""

    kv: int = 0
    activations: int = 0


class Overflow(Option):
    """An overflow policy: decides what is done with the blocks of a preempted request."""

    @classmethod
    def host_pools(
        cls, settings: Mapping[str, Any], block_bytes: HostPools, found: HostPools
    ) -> HostPools | None:
        """The blocks of a run's host pools by its settings, to which `kvscope check` holds the run.

        `settings` are those of the policy; `found` are the pools of the run. None if the settings
        do not tell: of a policy with a pool, unless it says so here.
        """
        return HostPools() if cls.pool_blocks is Overflow.pool_blocks else None

    def pool_blocks(self, experiment: Conditions) -> int:
        """The size of its host pool in blocks; 0 without a pool."""
        return 0

    def predictions_s(self, experiment: Conditions, tokens: int, beside: int) -> dict[str, float]:
        """The seconds that it predicts for a victim of so many tokens, by the name of the action.

        `beside` requests run with it. `kvscope check` compares `preemptions.predicted_s`. Empty if
        it predicts nothing, or from more than this.
        """
        return {}

    def pool_bytes(self, experiment: Conditions) -> int:
        """Bytes of its host pool."""
        return self.pool_blocks(experiment) * experiment.block_bytes

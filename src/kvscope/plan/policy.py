"""The planner's view of batching and overflow policies."""

from kvscope.plan.option import Option
from kvscope.plan.parts import Conditions


class Batching(Option):
    """A batching policy: selects the requests and tokens of each forward pass."""

    @property
    def pass_tokens(self) -> int | None:
        """The token budget of a pass; None if only the engine's limit applies."""
        return None


class Overflow(Option):
    """An overflow policy: decides what is done with the blocks of a preempted request."""

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

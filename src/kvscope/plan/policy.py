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

    def pool_bytes(self, experiment: Conditions) -> int:
        """Bytes of its host pool."""
        return self.pool_blocks(experiment) * experiment.block_bytes

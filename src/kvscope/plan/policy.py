"""What the planner asks of batching and overflow policies."""

from kvscope.plan.option import Option


class Batching(Option):
    """A batching policy: how forward passes are filled."""

    @property
    def pass_tokens(self) -> int | None:
        """The token budget of a pass; None if the engine's limit alone holds."""
        return None


class Overflow(Option):
    """An overflow policy: what becomes of a preempted request's blocks."""

    def pool_blocks(self, block_bytes: int) -> int:
        """Blocks of its host pool, of so many bytes each; 0 without one."""
        return 0

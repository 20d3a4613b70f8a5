"""The host pool: K and V of victims that were swapped out, and activations of any request."""

from collections.abc import Iterable

from kvscope.judge.twin.columns import blocks_of
from kvscope.judge.twin.requests import InPool, Request
from kvscope.judge.twin.rules import Rules


class HostPool:
    """How many blocks of the host pool hold K and V, and how many activations."""

    def __init__(self, rules: Rules) -> None:
        self._rules, self._size = rules, rules.block_size
        self.kv_blocks = self.input_blocks = 0

    @property
    def used(self) -> int:
        """Blocks in use."""
        return self.kv_blocks + self.input_blocks

    def has_room(self, blocks: int) -> bool:
        """Whether so many blocks of K and V fit."""
        return blocks <= self._rules.host_kv_blocks - self.kv_blocks

    def swap_out(self, request: Request, blocks: int, missing: list[int]) -> None:
        """Keep the blocks of a victim, without those at the places that are `missing`."""
        request.in_pool = InPool(request.tokens, blocks, missing)
        self.kv_blocks += blocks

    def drop_kv(self, request: Request) -> None:
        """Keep no K and V of a request any more."""
        if request.in_pool is not None:
            self.kv_blocks -= request.in_pool.blocks
            request.in_pool = None

    def drop_saved(self, request: Request) -> None:
        """Keep no activations of a request any more."""
        if request.saved is not None:
            self.input_blocks -= blocks_of(request.saved, self._size)
            request.saved = None

    def drop(self, request: Request) -> None:
        """Keep nothing of a request any more."""
        self.drop_kv(request)
        self.drop_saved(request)

    def save(self, request: Request, more: int) -> int:
        """Keep the activations of more tokens of a request, if all earlier ones are kept and these
        fit.

        Returns the blocks that they fill or begin; 0 if nothing is kept.
        """
        before, saved = request.tokens, request.saved or 0
        blocks = blocks_of(before + more, self._size) - blocks_of(saved, self._size)
        room = self._rules.input_blocks_total - self.input_blocks
        if before != saved or blocks > room:
            self.drop_saved(request)
            return 0
        self.input_blocks += blocks
        request.saved = before + more
        return blocks_of(before + more, self._size) - before // self._size


def end_of(kept: InPool, found: int, block_size: int) -> int:
    """End of the tokens that a host copy has in a row after the tokens that a request has found."""
    gaps: Iterable[int] = (gap for gap in kept.missing if gap * block_size >= found)
    return min([kept.tokens, *(gap * block_size for gap in gaps)])

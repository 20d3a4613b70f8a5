"""The sizes and rules of a run, which are the same in each of its repeats."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from kvscope.tables.kv_kinds import KvKind, keep_all_together, kind_of


@dataclass(frozen=True)
class Group:
    """A KV group: what is kept, tokens of a block, its window or chunk, bytes of a block."""

    kind: str
    block_tokens: int
    window_tokens: int | None = None
    useful_bytes: int | None = None

    def held_blocks(self, context_tokens: int, tokens: int) -> int:
        """Blocks of a request with room for `tokens`, of which `context_tokens` were computed."""
        window = self.window_tokens or 0
        return self._kind.held_blocks(context_tokens, tokens, self.block_tokens, window)

    @cached_property
    def _kind(self) -> KvKind:
        return kind_of(self.kind)


@dataclass(frozen=True)
class Rules:
    """Facts of a run that a replay needs beside its tables.

    `always` is the action of every preemption, None where the policy chooses among several.
    `ranked`: victims are chosen by rank, and may have got blocks for the pass before. `whole`: a
    request gets blocks for its whole prompt when it is admitted. `ends_early`: a request may end
    before it has all tokens that it asks for, so that its last pass says when. `waiting_first`: a
    pass prefills waiting requests before those that run go on. `most_tentative` tokens of a request
    may be computed by a pass before it is known whether they are right.
    """

    block_size: int
    kv_blocks_total: int
    groups: Sequence[Group]
    block_bytes: int = 0
    host_blocks_total: int = 0
    input_blocks_total: int = 0
    input_block_bytes: int = 0
    prefix_caching: bool = False
    whole: bool = False
    always: str | None = None
    ranked: bool = False
    chunk_tokens: int | None = None
    most_tentative: int = 0
    stores_outputs: bool = True
    ends_early: bool = False
    waiting_first: bool = False

    @property
    def by_group(self) -> bool:
        """Whether a request's blocks do not follow from its tokens and the block size alone."""
        return not keep_all_together(group.kind for group in self.groups)

    @property
    def host_kv_blocks(self) -> int:
        """Blocks of the host pool for K and V."""
        return self.host_blocks_total - self.input_blocks_total

    @property
    def kept_free(self) -> int:
        """Blocks that stay free when a running request gets more."""
        return int(self.whole)

    def held_blocks(self, context_tokens: int, tokens: int) -> list[int]:
        """Blocks of each group of a request with room for `tokens`."""
        return [group.held_blocks(context_tokens, tokens) for group in self.groups]

    def useful_bytes(self, blocks: Sequence[int]) -> int | None:
        """Bytes of so many blocks of each group without padding; None if sizes are not known."""
        sizes = [group.useful_bytes for group in self.groups]
        if len(blocks) != len(sizes):
            return None
        pairs = zip(sizes, blocks, strict=True)
        bytes_ = [size * count for size, count in pairs if size is not None]
        return sum(bytes_) if len(bytes_) == len(sizes) else None

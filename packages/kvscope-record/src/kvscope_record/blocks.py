"""Contents of the blocks of the KV cache, from the blocks that requests were given.

It says what a request found in the prefix cache, whose it was, and what had to leave it for another
request. It knows one KV group: with several, a hit is of a different block in each.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

from kvscope.api.engines import rows
from kvscope_record.records import Scheduled

Row = TypeVar("Row")
NO_TOKENS: Mapping[int, int] = MappingProxyType({})


class BlockRows(Generic[Row]):
    """Hits or evictions, as plain numbers: millions of objects would fill the memory."""

    _WIDTH = 7

    def __init__(self, row: Callable[..., Row]) -> None:
        self._row = row
        self._numbers = array("i")

    def __len__(self) -> int:
        return len(self._numbers) // self._WIDTH

    def add(self, step: int, request: int, content: "Content", more: int) -> None:
        """Add a row; `more` is its last field."""
        self._numbers.extend((step, request, *content, more))

    def __iter__(self) -> Iterator[Row]:
        fields = (iter(self._numbers),) * self._WIDTH
        for step, request, block, owner, position, cached_step, more in zip(*fields, strict=True):
            content = rows.CachedBlock(block, str(owner), position, cached_step)
            yield self._row(step, str(request), content, more)


Content = tuple[int, int, int, int]
"""Block, owner, position and step of a block in the prefix cache."""


def _hit(step: int, request: str, found: rows.CachedBlock, in_use: int) -> rows.BlockHit:
    return rows.BlockHit(step, request, found, bool(in_use))


class BlockContents:
    """Follows the blocks of a recording's requests, pass by pass."""

    def __init__(self, block_size: int) -> None:
        self.hits = BlockRows(_hit)
        self.evictions = BlockRows(rows.BlockEviction)
        self.unknown = 0  # blocks that were found, and computed before the recording's window
        self._block_size = block_size
        self._held: dict[int, list[int]] = {}  # block ids of each request, in order
        self._known: dict[int, int] = {}  # of each request, blocks that are filled
        self._full_at: dict[int, int] = {}  # tokens with which the next block is
        self._holders: Counter[int] = Counter()  # requests of each block
        self._content: dict[int, Content] = {}
        self._found: Counter[int] = Counter()  # how often each block of _content was found
        self._partly: set[int] = set()  # requests that got unknown blocks in a gap

    def begin(self, request: int, blocks: list[int]) -> None:
        """A request held blocks when the window began."""
        self._held[request] = list(blocks)
        self._holders.update(blocks)

    def forget(self) -> None:
        """What happened to blocks is unknown: all that was known before is no longer."""
        self._partly |= self._held.keys()
        self._holders.clear()
        for blocks in self._held.values():
            self._holders.update(blocks)
        self._content.clear()
        self._found.clear()

    def release(self, request: int) -> None:
        """A request holds no blocks any more."""
        self._holders.subtract(self._held.pop(request, ()))
        self._known.pop(request, None)
        self._full_at.pop(request, None)
        self._partly.discard(request)

    def schedule(
        self, step: int, event: Scheduled, tentative: Mapping[int, int] = NO_TOKENS
    ) -> None:
        """A pass was scheduled, the table's `step`; `tentative` are such tokens by request."""
        hit_tokens: dict[int, int] = {request: tokens for request, tokens in event.hits}
        given = {request: (admitted, ids) for request, admitted, (ids,) in event.blocks}
        # In the order of the schedule: a request finds blocks that one before it fills.
        for request, computed, cached in zip(
            event.requests, event.computed, event.cached, strict=True
        ):
            if request in given:
                self._give(step, request, *given[request], hit_tokens.get(request, 0))
            end = cached + computed - tentative.get(request, 0)
            if end >= self._full_at.get(request, 0):
                self._fill(step, request, cached, end)

    def _give(
        self, step: int, request: int, admitted: bool, ids: list[int], found_tokens: int
    ) -> None:
        """A request gets blocks; of an admitted one the first may be found in the prefix cache."""
        if admitted:
            self.release(request)
        hits = found_tokens // self._block_size if admitted else 0
        for position, block in enumerate(ids):
            if position < hits:
                self._find(step, request, block)
            else:
                self._evict(step, request, block)
        self._held.setdefault(request, []).extend(ids)
        self._holders.update(ids)

    def _fill(self, step: int, request: int, start: int, end: int) -> None:
        """The pass computes tokens of a request; blocks that it fills are in the prefix cache.

        A block whose last tokens are tentative is there with the pass after, if they were right.
        """
        if request in self._partly:
            return
        self._full_at[request] = (end // self._block_size + 1) * self._block_size
        blocks = self._held.get(request, [])
        hashes = self._known.get(request, start // self._block_size)
        self._known[request] = max(hashes, end // self._block_size)
        for position in range(hashes, end // self._block_size):
            if position < len(blocks):
                block = blocks[position]
                self._content[block] = block, request, position, step

    def _find(self, step: int, request: int, block: int) -> None:
        content = self._content.get(block)
        if content is None:
            self.unknown += 1
            return
        self._found[block] += 1
        self.hits.add(step, request, content, self._holders[block] > 0)

    def _evict(self, step: int, request: int, block: int) -> None:
        lost = self._content.pop(block, None)
        if lost is not None:
            hits = self._found.pop(block, 0)
            self.evictions.add(step, request, lost, hits)

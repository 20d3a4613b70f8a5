"""Running requests that hold the blocks found in the prefix cache.

A block is known by the request that computed it, its position there, and the pass that computed its
last token. Only blocks that were found can be held by several requests.
"""

from collections import defaultdict
from typing import NamedTuple


class BlockContent(NamedTuple):
    """Content of a block: the tokens of its owner up to the end of the position."""

    owner: str
    position: int
    cached_step: int


class Holders:
    """The requests that hold blocks, followed admission by admission in the order of a run."""

    def __init__(self) -> None:
        self.extra = 0  # blocks that requests hold, beyond one for each block
        self._since: dict[str, int] = {}  # the pass that admitted each running request
        self._holders: dict[BlockContent, set[str]] = {}
        self._found: defaultdict[str, list[BlockContent]] = defaultdict(list)

    def admit(self, request_id: str, step: int) -> None:
        """A request runs from this pass on, with blocks of its own."""
        self._since[request_id] = step

    def find(self, request_id: str, block: BlockContent) -> bool:
        """A request that was admitted found a block; returns whether others hold it."""
        holders = self._holders.get(block)
        if holders is None:
            holders = self._holders[block] = set()
            if self._computed(block):
                holders.add(block.owner)
                self._found[block.owner].append(block)
        in_use = bool(holders)
        self.extra += in_use
        holders.add(request_id)
        self._found[request_id].append(block)
        return in_use

    def held(self, block: BlockContent) -> bool:
        """Whether a request holds a block."""
        holders = self._holders.get(block)
        return self._computed(block) if holders is None else bool(holders)

    def _computed(self, block: BlockContent) -> bool:
        """Whether the owner of a block has held it ever since it computed it."""
        since = self._since.get(block.owner)
        return since is not None and since <= block.cached_step

    def shared(self, request_id: str) -> list[int]:
        """The positions of a request's blocks that others hold as well, in order."""
        blocks = self._found.get(request_id, ())
        return sorted(block.position for block in blocks if len(self._holders[block]) > 1)

    def release(self, request_id: str) -> None:
        """A request holds no block any more."""
        self._since.pop(request_id, None)
        for block in self._found.pop(request_id, ()):
            holders = self._holders[block]
            holders.discard(request_id)
            self.extra -= bool(holders)

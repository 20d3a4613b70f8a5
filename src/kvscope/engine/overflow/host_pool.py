"""Who holds which blocks of the host pool."""

import heapq
from dataclasses import dataclass


@dataclass(frozen=True)
class Held:
    """A swapped-out request: tokens whose K and V are kept, and the host blocks they are in."""

    tokens: int
    blocks: tuple[int, ...]


class HostPool:
    """Blocks 0 … size-1 of host memory, free or held by a swapped-out request."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = list(range(size))  # a heap: low numbers first keeps a request's blocks close
        self._held: dict[str, Held] = {}

    @property
    def used(self) -> int:
        """Blocks that are not free."""
        return self.size - len(self._free)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._held

    def hold(self, request_id: str, tokens: int, count: int) -> Held | None:
        """Give a request `count` blocks; None, and nothing given, if that many are not free."""
        if count > len(self._free):
            return None
        blocks = tuple(heapq.heappop(self._free) for _ in range(count))
        self._held[request_id] = Held(tokens, blocks)
        return self._held[request_id]

    def held(self, request_id: str) -> Held | None:
        """What a request holds; None if nothing."""
        return self._held.get(request_id)

    def release(self, request_id: str) -> Held | None:
        """Take a request's blocks back; returns what it held.

        The data stay in place until the blocks are held again, which is in a later schedule, when
        the pass that copies them back has ended.
        """
        held = self._held.pop(request_id, None)
        for block in held.blocks if held else ():
            heapq.heappush(self._free, block)
        return held

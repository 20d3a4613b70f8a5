"""The allocation of the host pool's blocks."""

import heapq
from dataclasses import dataclass, replace
from itertools import count, takewhile


@dataclass(frozen=True)
class HostAllocation:
    """A request's tokens that the host keeps, and the host blocks they are in.

    The blocks are those of the request's positions 0, 1, …, but for those `left_out`.
    """

    tokens: int
    blocks: tuple[int, ...]
    left_out: frozenset[int] = frozenset()

    @property
    def held(self) -> dict[int, int]:
        """The host block of each position that is not left out, in order."""
        positions = (position for position in count() if position not in self.left_out)
        return dict(zip(positions, self.blocks, strict=False))

    def positions_from(self, first: int) -> list[int]:
        """The positions from `first` on, up to the first that was left out."""
        return list(takewhile(self.held.__contains__, count(first)))


NOTHING = HostAllocation(0, ())


class HostPool:
    """Blocks 0 … size-1 of host memory, free or held by a request."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._untouched = 0  # this block and those after it were never held
        self._returned: list[int] = []  # a heap: low numbers first keeps a request's blocks close
        self._held: dict[str, HostAllocation] = {}

    @property
    def used(self) -> int:
        """Blocks that are not free."""
        return self._untouched - len(self._returned)

    @property
    def free(self) -> int:
        """Blocks that are free."""
        return self.size - self.used

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._held

    def allocate(self, request_id: str, tokens: int, count: int) -> HostAllocation | None:
        """Let a request keep `tokens` tokens in `count` blocks, those that it has among them.

        None, and nothing changes, if fewer are free.
        """
        present = self._held.get(request_id, NOTHING)
        more = count - len(present.blocks)
        if more > self.free:
            return None
        blocks = present.blocks + tuple(self._next() for _ in range(more))
        self._held[request_id] = HostAllocation(tokens, blocks)
        return self._held[request_id]

    def leave_out(self, request_id: str, positions: frozenset[int]) -> None:
        """Note the positions of a request's blocks that the host does not have."""
        self._held[request_id] = replace(self._held[request_id], left_out=positions)

    def allocation(self, request_id: str) -> HostAllocation | None:
        """The allocation of a request; None without one."""
        return self._held.get(request_id)

    def release(self, request_id: str) -> HostAllocation | None:
        """Free a request's blocks; returns its allocation, or None without one.

        The data stay valid until the blocks are allocated again. That happens in a later schedule,
        whose copies follow those of this one: vLLM admits no request while it preempts.
        """
        allocation = self._held.pop(request_id, None)
        for block in allocation.blocks if allocation else ():
            heapq.heappush(self._returned, block)
        return allocation

    def _next(self) -> int:
        if self._returned:
            return heapq.heappop(self._returned)
        self._untouched += 1
        return self._untouched - 1

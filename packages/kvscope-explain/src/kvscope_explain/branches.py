"""Tokens that follow the same blocks: how far a prompt agrees with earlier ones within a block."""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable

import numpy as np
import numpy.typing as npt

WIDTH = 4
"""Bytes of an encoded token."""
Branch = tuple[str, int]
"""A block of a request, full or not: the request, and the block's place in it."""


class Branches:
    """The blocks that requests have after each chain of full blocks, in the order of their tokens.

    `encoded` gives the tokens of a branch as bytes, `computed` how many of them were computed.
    """

    def __init__(
        self, encoded: Callable[[Branch], bytes], computed: Callable[[Branch], int]
    ) -> None:
        self._encoded, self._computed = encoded, computed
        self._after: dict[Hashable, list[Branch]] = defaultdict(list)

    def add(self, chain: Hashable, branch: Branch) -> None:
        """A request has a block after a chain of full blocks."""
        branches = self._after[chain]
        if branches:
            insort(branches, branch, key=self._encoded)
        else:
            branches.append(branch)

    def shared_tokens(self, chain: Hashable, tokens: bytes) -> int:
        """The most of the first of these tokens that one branch after the chain has computed."""
        branches = self._after.get(chain)
        if not branches:
            return 0
        middle = bisect_left(branches, tokens, key=self._encoded)
        return max(
            self._shared(branches[middle:], tokens), self._shared(branches[:middle][::-1], tokens)
        )

    def _shared(self, nearest: Iterable[Branch], tokens: bytes) -> int:
        """The most tokens that were computed, of branches that agree in fewer and fewer tokens."""
        most = 0
        for branch in nearest:
            common = common_bytes(self._encoded(branch), tokens) // WIDTH
            if common <= most:
                break
            most = max(most, min(common, self._computed(branch)))
        return most


def encode(tokens: npt.NDArray[np.int64]) -> bytes:
    """Token ids as big-endian numbers: bytes in whose order are the tokens."""
    return tokens.astype(">u4").tobytes()


def common_bytes(one: bytes, other: bytes) -> int:
    """The number of first bytes in which two agree."""
    size = min(len(one), len(other))
    if one[:size] == other[:size]:
        return size
    first, second = (np.frombuffer(part, np.uint8, size) for part in (one, other))
    return int(np.argmax(first != second))

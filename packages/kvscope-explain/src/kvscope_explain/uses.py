"""Uses of cached blocks in their order, and the reuse distances that follow from them."""

from collections import Counter
from collections.abc import Hashable, Iterable


class BlockUses:
    """Last use of each block; the blocks of one event are used at the same moment.

    A Fenwick tree over the events counts the blocks whose last use each of them is.
    """

    def __init__(self) -> None:
        self._last: dict[Hashable, int] = {}  # event of each block's last use
        self._tree = [0]  # node i counts the events from i - (i & -i) + 1 to i; the first is 1

    def __contains__(self, block: Hashable) -> bool:
        return block in self._last

    def use(self, blocks: Iterable[Hashable]) -> None:
        """Blocks are used together, after all that were used before."""
        event, last = len(self._tree), self._last
        names = dict.fromkeys(blocks)
        if not names:
            return
        for before, count in Counter(map(last.get, names)).items():
            if before is not None:
                self._add(before, -count)
        self._tree.append(self._sum(event - 1) - self._sum(event - (event & -event)) + len(names))
        last.update(dict.fromkeys(names, event))

    def last_use(self, block: Hashable) -> int:
        """The event of a block's last use."""
        return self._last[block]

    def since(self, event: int) -> int:
        """The number of different blocks that were used after an event."""
        return len(self._last) - self._sum(event)

    @property
    def events(self) -> int:
        """The number of events so far."""
        return len(self._tree) - 1

    def _add(self, event: int, count: int) -> None:
        tree = self._tree
        while event < len(tree):
            tree[event] += count
            event += event & -event

    def _sum(self, event: int) -> int:
        tree, total = self._tree, 0
        while event:
            total += tree[event]
            event &= event - 1
        return total

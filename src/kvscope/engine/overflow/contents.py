"""What a request's blocks hold, to compare what was swapped out with what came back.

Which blocks a request has is asked of vLLM's scheduler, and their contents are read by indexing
each layer's cache: nothing is known of how blocks are chosen and copied.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import sha256

import torch

from kvscope.engine.checks import Comparisons

Content = dict[str, list[bytes]]  # of each layer, a digest of each block


class SwapChecks(Comparisons):
    """Remembers what requests had when they were preempted, until they run again.

    `layers` are the caches, a tensor (blocks, …) of each layer; `blocks_of` tells the blocks that a
    request has now, in order.
    """

    def __init__(
        self, layers: Mapping[str, torch.Tensor], blocks_of: Callable[[str], Sequence[int]]
    ) -> None:
        super().__init__()
        self._layers, self._blocks_of = layers, blocks_of
        self._away: dict[str, Content] = {}

    def record_swap_out(self, request_id: str, count: int) -> None:
        """A request is about to lose its blocks, of which the first `count` are kept."""
        blocks = self._blocks_of(request_id)[:count]
        self._away[request_id] = read_content(self._layers, blocks)

    def compare_resumed(self, request_ids: Collection[str]) -> None:
        """A forward pass begins: those of its requests that were away have to be as they were."""
        for request_id in self._away.keys() & request_ids:
            before = self._away.pop(request_id)
            count = max(map(len, before.values()))
            blocks = self._blocks_of(request_id)[:count]
            difference = describe_difference(before, read_content(self._layers, blocks))
            self.add(not difference, f"request {request_id}: {difference}")


def read_content(layers: Mapping[str, torch.Tensor], blocks: Sequence[int]) -> Content:
    """What these blocks hold; each layer's cache is a tensor (blocks, …)."""
    return {
        name: [sha256(_bytes(cache[block])).digest() for block in blocks]
        for name, cache in layers.items()
    }


def _bytes(block: torch.Tensor) -> bytes:
    return bytes(block.contiguous().view(torch.uint8).cpu().numpy())


def describe_difference(before: Content, after: Content) -> str:
    """In what two contents differ, in words; empty if in nothing."""
    for name, blocks in before.items():
        found = after.get(name, [])
        if len(found) != len(blocks):
            return f"{len(found)} of {len(blocks)} blocks came back"
        changed = [place for place, block in enumerate(blocks) if found[place] != block]
        if changed:
            return (
                f"{len(changed)} of {len(blocks)} blocks of {name} came back with other content, "
                f"the first at position {changed[0]}"
            )
    return ""

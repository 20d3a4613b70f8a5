"""Digests of the contents of blocks, to compare swapped-out blocks with those swapped in.

The blocks of a request come from vLLM's scheduler and their contents from indexing each layer's
cache, independently of the code that selects and copies blocks.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import sha256

import torch

from kvscope.engine.checks import Comparisons

Content = dict[str, list[bytes]]  # of each layer, a digest of each block


class SwapChecks(Comparisons):
    """Keeps digests of preempted requests' blocks and compares them when the requests resume.

    `layers` has the cache of each layer, a tensor (blocks, …); `blocks_of` returns the current
    blocks of a request, in order.
    """

    def __init__(
        self, layers: Mapping[str, torch.Tensor], blocks_of: Callable[[str], Sequence[int]]
    ) -> None:
        super().__init__()
        self._layers, self._blocks_of = layers, blocks_of
        self._away: dict[str, Content] = {}

    def record_swap_out(self, request_id: str, count: int) -> None:
        """Read the first `count` blocks of a request before it is swapped out."""
        blocks = self._blocks_of(request_id)[:count]
        self._away[request_id] = read_content(self._layers, blocks)

    def compare_resumed(self, request_ids: Collection[str]) -> None:
        """Compare the blocks of resumed requests; called when a forward pass begins."""
        for request_id in self._away.keys() & request_ids:
            before = self._away.pop(request_id)
            count = max(map(len, before.values()))
            blocks = self._blocks_of(request_id)[:count]
            difference = describe_difference(before, read_content(self._layers, blocks))
            self.add(not difference, f"request {request_id}: {difference}")


def read_content(layers: Mapping[str, torch.Tensor], blocks: Sequence[int]) -> Content:
    """SHA-256 digests of these blocks in each layer, whose cache is a tensor (blocks, …)."""
    return {
        name: [sha256(_bytes(cache[block])).digest() for block in blocks]
        for name, cache in layers.items()
    }


def _bytes(block: torch.Tensor) -> bytes:
    return bytes(block.contiguous().view(torch.uint8).cpu().numpy())


def describe_difference(before: Content, after: Content) -> str:
    """The first difference between two contents, in words; '' if they are equal."""
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

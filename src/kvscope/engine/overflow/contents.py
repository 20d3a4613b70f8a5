"""What a request's blocks hold, to compare what was copied out with what came back.

Contents are read by indexing each layer's cache, and know nothing of how copies are made.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256

import torch

from kvscope.engine.checks import Comparisons

Content = dict[str, list[bytes]]  # of each layer, a digest of each block


class SwapChecks(Comparisons):
    """Remembers what requests had when they were copied out, until they are copied in."""

    def __init__(self) -> None:
        super().__init__()
        self._away: dict[str, Content] = {}

    def leaves(
        self, layers: Mapping[str, torch.Tensor], request_id: str, blocks: Sequence[int]
    ) -> None:
        """A request's blocks are about to be copied out."""
        self._away[request_id] = content(layers, blocks)

    def returns(
        self, layers: Mapping[str, torch.Tensor], request_id: str, blocks: Sequence[int]
    ) -> None:
        """A request's blocks have been copied in; nothing is said of one that left unseen."""
        before = self._away.pop(request_id, None)
        if before is None:
            return
        difference = different(before, content(layers, blocks))
        self.add(not difference, f"request {request_id}: {difference}")


def content(layers: Mapping[str, torch.Tensor], blocks: Sequence[int]) -> Content:
    """What these blocks hold; each layer's cache is a tensor (blocks, …)."""
    return {
        name: [sha256(_bytes(cache[block])).digest() for block in blocks]
        for name, cache in layers.items()
    }


def _bytes(block: torch.Tensor) -> bytes:
    return bytes(block.contiguous().view(torch.uint8).cpu().numpy())


def different(before: Content, after: Content) -> str:
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

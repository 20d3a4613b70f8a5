"""Contents of the blocks of preempted requests, compared when the requests resume.

Swapped blocks come back as they were; of these, digests are kept. Rebuilt K and V are products of
other shapes, so their last bits may differ; of these, copies are kept. The blocks of a request come
from vLLM's scheduler and their contents from indexing each layer's cache, independently of the code
that selects, copies and rebuilds blocks.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import sha256

import torch

from kvscope.engine.checks import Comparisons

Content = dict[str, list[bytes]]  # of each layer, a digest of each block


# Between rebuilt elements and those they replace, as a share of the largest: above the rounding of
# a product, far below the difference between two tokens.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}


class SwapChecks(Comparisons):
    """Keeps the contents of preempted requests' blocks and compares them when they resume.

    `layers` has the cache of each layer, a tensor (blocks, …); `blocks_of` returns the current
    blocks of a request as `kv_groups.in_order`.
    """

    def __init__(
        self, layers: Mapping[str, torch.Tensor], blocks_of: Callable[[str], Sequence[int | None]]
    ) -> None:
        super().__init__()
        self._layers, self._blocks_of = layers, blocks_of
        self._away: dict[str, Content] = {}
        self._positions: dict[str, Sequence[int]] = {}  # of blocks that are copied back
        self._to_rebuild: dict[str, dict[str, torch.Tensor]] = {}

    def record_swap_out(self, request_id: str, count: int) -> None:
        """Read the first `count` blocks of a request before it is swapped out."""
        blocks = self._blocks_of(request_id)[:count]
        self._away[request_id] = read_content(self._layers, blocks)

    def record_swap_in(self, request_id: str, positions: Sequence[int]) -> None:
        """Note which blocks of a swapped-out request are copied back; only these are compared.

        The others are those that it found in the prefix cache, which another request may have
        computed.
        """
        before = self._away[request_id]
        self._positions[request_id] = positions
        self._away[request_id] = {
            name: [blocks[position] for position in positions] for name, blocks in before.items()
        }

    def record_rebuild(self, request_id: str, count: int) -> None:
        """Copy the first `count` blocks of a request, which are full of tokens."""
        if not count:
            return
        blocks = self._blocks_of(request_id)[:count]
        self._to_rebuild[request_id] = {
            name: cache[blocks].clone() for name, cache in self._layers.items()
        }

    def keep_first(self, request_id: str, count: int) -> None:
        """Compare only the first blocks of a request that resumes; the others are not there."""
        if (kept := self._to_rebuild.pop(request_id, None)) and count:
            self._to_rebuild[request_id] = {name: blocks[:count] for name, blocks in kept.items()}

    def compare_resumed(self, request_ids: Collection[str]) -> None:
        """Compare the blocks of resumed requests; called when a forward pass begins."""
        for request_id in self._away.keys() & request_ids:
            before, positions = self._away.pop(request_id), self._positions.pop(request_id, None)
            if positions is None:
                continue  # nothing was copied back: all was found, or is computed again
            blocks = self._blocks_of(request_id)
            after = read_content(self._layers, [blocks[position] for position in positions])
            difference = describe_difference(before, after)
            self.add(not difference, f"request {request_id}: {difference}")
        for request_id in self._to_rebuild.keys() & request_ids:
            difference = self._describe_rebuilt(request_id, self._to_rebuild.pop(request_id))
            self.add(not difference, f"request {request_id}: {difference}")

    def _describe_rebuilt(self, request_id: str, before: dict[str, torch.Tensor]) -> str:
        for name, blocks in before.items():
            count = len(blocks)
            rebuilt = self._layers[name][self._blocks_of(request_id)[:count]]
            off = (rebuilt - blocks).abs().flatten(1).amax(1)
            allowed = TOLERANCE[blocks.dtype] * blocks.abs().amax()
            (changed,) = (~(off <= allowed)).nonzero(as_tuple=True)
            if len(changed):
                return (
                    f"{len(changed)} of {count} blocks of {name} were rebuilt with other content, "
                    f"the first at position {int(changed[0])}"
                )
        return ""


def read_content(layers: Mapping[str, torch.Tensor], blocks: Sequence[int | None]) -> Content:
    """SHA-256 digests of these blocks in each layer, whose cache is a tensor (blocks, …).

    Empty where there is no block.
    """
    return {
        name: [b"" if block is None else sha256(_bytes(cache[block])).digest() for block in blocks]
        for name, cache in layers.items()
    }


def _bytes(block: torch.Tensor) -> bytes:
    return bytes(block.contiguous().view(torch.uint8).cpu().numpy())


def describe_difference(before: Content, after: Content) -> str:
    """The first difference between two contents, in words; '' if they are equal."""
    for name, blocks in before.items():
        returned = after.get(name, [])
        if len(returned) != len(blocks):
            return f"{len(returned)} of {len(blocks)} blocks came back"
        changed = [place for place, block in enumerate(blocks) if returned[place] != block]
        if changed:
            return (
                f"{len(changed)} of {len(blocks)} blocks of {name} came back with other content, "
                f"the first at position {changed[0]}"
            )
    return ""

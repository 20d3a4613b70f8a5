"""Contents of the blocks of a batch, so that all of it keeps to a split."""

from dataclasses import dataclass

from kvscope_offload.blocks import Content
from kvscope_offload.split import Split


@dataclass
class Placement:
    """Deals out contents to blocks so that all requests together keep to a split."""

    split: Split
    blocks: float = 0.0
    activations: int = 0
    ids: int = 0

    def prompt(self, count: int) -> list[Content]:
        """The contents of a prompt's blocks: ids first, then K and V, then activations."""
        self.blocks += count
        ids = _due(self.split.token * self.blocks, self.ids, count)
        self.ids += ids
        activations = self._activations(count - ids)
        kv = count - ids - activations
        return [Content.TOKEN] * ids + [Content.KV] * kv + [Content.ACTIVATION] * activations

    def further(self) -> Content:
        """The content of one more block; ids are a prefix, so they are not among them."""
        self.blocks += 1
        return Content.ACTIVATION if self._activations(1) else Content.KV

    def _activations(self, most: int) -> int:
        """Number of activations among the newest blocks: their share of all blocks but ids."""
        kept = 1.0 - self.split.token
        share = self.split.activation / kept if kept else 0.0
        count = _due(share * (self.blocks - self.ids), self.activations, most)
        self.activations += count
        return count


def _due(blocks: float, so_far: int, most: int) -> int:
    return max(0, min(most, round(blocks) - so_far))

"""Which blocks of a batch hold what, so that all of it keeps to a split."""

from dataclasses import dataclass

from kvscope.offload.blocks import Content
from kvscope.offload.split import Split


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
        ids = self._due(self.split.token, self.ids, count)
        activations = self._due(self.split.activation, self.activations, count - ids)
        self.ids += ids
        self.activations += activations
        kv = count - ids - activations
        return [Content.TOKEN] * ids + [Content.KV] * kv + [Content.ACTIVATION] * activations

    def further(self) -> Content:
        """The content of one more block; ids are a prefix, so they are not among them."""
        self.blocks += 1
        due = self._due(self.split.activation, self.activations, 1)
        self.activations += due
        return Content.ACTIVATION if due else Content.KV

    def _due(self, share: float, so_far: int, most: int) -> int:
        return max(0, min(most, round(share * self.blocks) - so_far))

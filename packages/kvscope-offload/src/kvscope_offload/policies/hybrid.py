"""`hybrid`: K and V, activations and ids in shares that keep link and device busy equally long."""

from typing import Annotated

from pydantic import Field

from kvscope.api.settings import Label, fields
from kvscope_offload.cost import CostModel
from kvscope_offload.pipeline import Style
from kvscope_offload.policy import OffloadPolicy
from kvscope_offload.split import Demand, Split, Trial, best, in_whole_blocks


class Hybrid(OffloadPolicy):
    """The closed form's split, corrected for whole blocks, or a given `share` of activations.

    Ablations: `spread_weights` false loads a layer's weights in one piece, `balanced` false takes
    requests into mini-batches as they come, one of `buffers` leaves nothing to overlap.
    """

    share: Annotated[
        Annotated[fields.Real, Field(ge=0, le=1)] | None, Label("activations (share of context)")
    ] = None
    spread_weights: Annotated[bool, Label("weights spread over mini-batches")] = True
    balanced: Annotated[bool, Label("balanced mini-batches")] = True
    buffers: Annotated[fields.Count, Label("staging buffers")] = 2

    @property
    def schedule(self) -> Style:
        """Schedule without its ablated parts."""
        return Style(self.buffers, self.spread_weights)

    @property
    def formation(self) -> bool:
        """True if mini-batches are formed by size, unless that is ablated."""
        return self.balanced

    def split(self, cost: CostModel, demand: Demand, trial: Trial) -> Split:
        """Given share, or the best one."""
        if self.share is not None:
            return Split(activation=self.share)
        return in_whole_blocks(best(cost, demand), cost, trial)

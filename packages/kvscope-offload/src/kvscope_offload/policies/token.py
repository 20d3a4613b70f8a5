"""`token`: a prefix of the context is computed again from its ids in every step."""

from typing import Annotated

from pydantic import Field

from kvscope.api.settings import Label, fields
from kvscope_offload.cost import CostModel
from kvscope_offload.policy import OffloadPolicy
from kvscope_offload.split import Demand, Split, Trial


class TokenRecompute(OffloadPolicy):
    """`share` of the tokens, the first of each request, is not kept at all."""

    share: Annotated[fields.Real, Field(ge=0, le=1), Label("tokens computed again (share)")] = 0.2

    def split(self, cost: CostModel, demand: Demand, trial: Trial) -> Split:
        """The share, and K and V of the rest."""
        return Split(token=self.share)

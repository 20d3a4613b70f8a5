"""An overflow policy with an action of its own and a victim of its own choice."""

from typing import Annotated

from kvscope.api.policies import overflow
from kvscope.api.settings import Label, fields
from kvscope.api.tables import actions

STASH = actions.Action("stash", keeps=True, copies=True, lost="stashed", resumed="fetched")


class Stash(overflow.Swap):
    """Preempts the request that holds most tokens, and stashes it the first `times` times."""

    times: Annotated[fields.Count, Label("times stashed", "{} stashed")] = 1

    def rank(self, request: overflow.Victim) -> float:
        return request.tokens

    def action(self, victim: overflow.Victim) -> actions.Action:
        return STASH if victim.preemptions < self.times else actions.RECOMPUTE

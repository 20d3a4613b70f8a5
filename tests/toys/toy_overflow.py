"""An overflow policy with an action of its own and a victim of its own choice."""

from typing import Annotated

from kvscope.actions import RECOMPUTE, Action
from kvscope.api.settings import Label, fields
from kvscope.engine.overflow.policy import Victim
from kvscope.engine.overflow.swap import Swap

STASH = Action("stash", keeps=True, copies=True, lost="stashed", resumed="fetched")


class Stash(Swap):
    """Preempts the request that holds most tokens, and stashes it the first `times` times."""

    times: Annotated[fields.Count, Label("times stashed", "{} stashed")] = 1

    def rank(self, request: Victim) -> float:
        return request.tokens

    def action(self, victim: Victim) -> Action:
        return STASH if victim.preemptions < self.times else RECOMPUTE

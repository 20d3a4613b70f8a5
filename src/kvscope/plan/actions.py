"""Actions: what an overflow policy does with the blocks of a preempted request.

An overflow policy returns an action; the column `preemptions.policy` holds its name. A package
registers its own actions as entry points:

    [project.entry-points."kvscope.action"]
    my_action = "my_package.my_module:MY_ACTION"
"""

from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from kvscope.base.errors import BadInput

if TYPE_CHECKING:
    import pandas as pd

GROUP = "kvscope.action"


@dataclass(frozen=True)
class Action:
    """An action with the blocks of a victim.

    `keeps`: the victim's tokens are not computed again when it resumes. `copies`: its blocks are
    copied to the host pool and back, or the victim is recomputed if the pool is full. `rebuilds`:
    nothing is copied out; its K and V are rebuilt from the inputs of attention, which the host pool
    has of each token that was computed, or the victim is recomputed if some are missing. `loads`:
    what jobs have stored of it is loaded beside the passes, the rest computed again. `lost` and
    `resumed` are the words of the page: '9 tokens swapped out', 'swapped in'.
    """

    name: str
    keeps: bool = False
    copies: bool = False
    rebuilds: bool = False
    loads: bool = False
    lost: str = "lost"
    resumed: str = "to compute again"

    @property
    def needs_pool(self) -> bool:
        """Whether it needs a host pool."""
        return self.copies or self.rebuilds


RECOMPUTE = Action("recompute")
SWAP = Action("swap", keeps=True, copies=True, lost="swapped out", resumed="swapped in")


@cache
def action(name: str) -> Action:
    """Return a registered action by name; BadInput if no installed package registers it."""
    for point in entry_points(group=GROUP, name=name):
        registered = point.load()
        if isinstance(registered, Action) and registered.name == name:
            return registered
        raise BadInput(f"{point.value} is registered as action {name!r} but is {registered!r:.80}")
    raise BadInput(
        f"preemptions.policy is {name!r:.60}, an action that no installed package registers under "
        f"{GROUP!r}; install the package of the run's overflow policy"
    )


def copies_blocks(names: "pd.Series[str]") -> "pd.Series[bool]":
    """Mask of the actions that copy blocks, of a column of action names; False for null."""
    return names.map(lambda name: action(name).copies, na_action="ignore").eq(True)


def rebuilds_blocks(names: "pd.Series[str]") -> "pd.Series[bool]":
    """Mask of the actions that rebuild K and V, of a column of action names; False for null."""
    return names.map(lambda name: action(name).rebuilds, na_action="ignore").eq(True)


def loads_blocks(names: "pd.Series[str]") -> "pd.Series[bool]":
    """Mask of the actions whose jobs load blocks, of a column of action names; False for null."""
    return names.map(lambda name: action(name).loads, na_action="ignore").eq(True)


def keeps_tokens(names: "pd.Series[str]") -> "pd.Series[bool]":
    """Mask of the actions that keep tokens, of a column of action names; False for null."""
    return names.map(lambda name: action(name).keeps, na_action="ignore").eq(True)

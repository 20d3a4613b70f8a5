"""Actions: what becomes of the blocks of a preempted request.

An overflow policy answers with an action; its name stands in `preemptions.policy`, and what the
other parts need to know of it stands here. A package registers one of its own as an entry point:

    [project.entry-points."kvscope.action"]
    my_action = "my_package.my_module:MY_ACTION"
"""

from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from kvscope.errors import BadInput

if TYPE_CHECKING:
    import pandas as pd

GROUP = "kvscope.action"


@dataclass(frozen=True)
class Action:
    """What becomes of a victim's blocks.

    `keeps`: its tokens need not be computed again when it resumes. `copies`: its blocks are copied
    to the host pool, if that has room (else the victim is recomputed), and back. `lost` and
    `resumed` say so on the page: '9 tokens swapped out', 'swapped in'.
    """

    name: str
    keeps: bool = False
    copies: bool = False
    lost: str = "lost"
    resumed: str = "to compute again"


RECOMPUTE = Action("recompute")
SWAP = Action("swap", keeps=True, copies=True, lost="swapped out", resumed="swapped in")


@cache
def action(name: str) -> Action:
    """A registered action by its name; BadInput if no installed package registers it."""
    for point in entry_points(group=GROUP, name=name):
        found = point.load()
        if isinstance(found, Action) and found.name == name:
            return found
        raise BadInput(f"{point.value} is registered as action {name!r} but is {found!r:.80}")
    raise BadInput(
        f"preemptions.policy is {name!r:.60}, an action that no installed package registers under "
        f"{GROUP!r}; install the package of the run's overflow policy"
    )


def copies_blocks(names: "pd.Series[str]") -> "pd.Series[bool]":
    """Of a column of actions' names, whether each copies blocks; null does not."""
    return names.map(lambda name: action(name).copies, na_action="ignore").eq(True)


def keeps_tokens(names: "pd.Series[str]") -> "pd.Series[bool]":
    """Of a column of actions' names, whether each keeps tokens; null does not."""
    return names.map(lambda name: action(name).keeps, na_action="ignore").eq(True)

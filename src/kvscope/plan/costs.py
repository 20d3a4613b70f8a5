"""Costs of preemption, in seconds, by the cost model of some hardware.

A package registers a `CostModel` in the entry-point group `kvscope.cost`; at most one is installed.
By it `overflow.victim=cheapest` chooses victims, and policies may choose their actions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvscope.base import plugins
from kvscope.base.errors import BadInput
from kvscope.plan.parts import Conditions

GROUP = "kvscope.cost"


class PreemptionCosts(Protocol):
    """Seconds of actions with a victim's blocks, in one experiment on some hardware.

    Copies go `in` or `out`, in so many stretches of host blocks; their seconds are those on the
    device, and those until the host's call returns.
    """

    @property
    def block_size(self) -> int:
        """Tokens of a block."""

    def recompute_s(self, tokens: int, beside: int, together: int = 1) -> float:
        """Seconds to compute a victim's tokens again.

        So many requests run beside it, and so many are computed together.
        """

    def swap_s(self, blocks: int, runs: int, direction: str) -> tuple[float, float]:
        """Seconds to copy K and V of blocks."""

    def fetch_s(self, blocks: int, runs: int) -> tuple[float, float]:
        """Seconds to copy the inputs of attention of blocks to the device."""

    def rebuild_s(self, tokens: int) -> float:
        """Seconds to make K and V of the inputs of attention of tokens."""

    def write_through_s(self, tokens: int, most: int) -> float:
        """Seconds by which passes are longer that save a request's tokens, as they come."""


@dataclass(frozen=True)
class CostModel:
    """Costs of preemption on the hardware that it has numbers of.

    `hardware` gives the names of that hardware, `sha256` the SHA-256 of its numbers by a name.
    `costs` gives the costs in an experiment on some hardware, None for the experiment's device,
    with constants in place of its numbers. Both raise BadInput for hardware without numbers.
    """

    hardware: Callable[[], Sequence[str]]
    sha256: Callable[[str], str]
    costs: Callable[[Conditions, str | None, Mapping[str, float]], PreemptionCosts]


def swap_s(cost: PreemptionCosts, tokens: int) -> float:
    """Seconds to copy K and V of a request's tokens out and in."""
    blocks = -(-tokens // cost.block_size)
    return sum(cost.swap_s(blocks, 1, way)[0] for way in ("out", "in"))


def rebuild_s(cost: PreemptionCosts, tokens: int) -> float:
    """Seconds to fetch the inputs of attention of a request's tokens, and rebuild K and V."""
    return cost.fetch_s(-(-tokens // cost.block_size), 1)[0] + cost.rebuild_s(tokens)


def cost_model() -> CostModel:
    """The installed cost model; BadInput unless exactly one package registers a cost model."""
    names = plugins.names(GROUP)
    if len(names) != 1:
        raise BadInput(
            f"a cost model comes with one installed package, which registers it as {GROUP}; there "
            f"are {', '.join(names) or 'none'}"
        )
    return plugins.load(GROUP, names[0], CostModel)


def known_hardware() -> Sequence[str]:
    """The hardware that the installed cost model has numbers of; empty without a cost model."""
    return cost_model().hardware() if plugins.names(GROUP) else ()


def hardware_words() -> str:
    """The names of that hardware, for a sentence."""
    return ", ".join(known_hardware()) or "none, as no package with a cost model is installed"

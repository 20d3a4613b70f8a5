"""Forecasts of requests: how they grow, and their state when they are preempted."""

from dataclasses import dataclass
from typing import NamedTuple

from kvscope.api.policies import overflow


@dataclass(frozen=True)
class Foreseen(overflow.Victim):
    """Running request that may be preempted, with its expected state then."""

    beside: int = 0  # requests that run with it
    together: int = 1  # requests that are expected to resume or begin in the pass that resumes it
    again: int = 0  # times that it is expected to be preempted at once if it is recomputed
    activations: bool = False  # the host pool has the activations of all its tokens


class Growth(NamedTuple):
    """A request's tokens in the cache after this pass, and the most that it may have."""

    tokens: int
    most: int

    def after(self, passes: int) -> "Growth":
        """The growth of a request, so many passes later."""
        return Growth(self.tokens + passes, self.most)

    @property
    def runs(self) -> bool:
        """True if the request has not ended."""
        return self.tokens <= self.most


@dataclass(frozen=True)
class Outlook:
    """The future of a request that begins: its growth, and how it is at each preemption.

    `victims` have their activations if there is room for them and they are saved.
    """

    growth: Growth
    victims: tuple[Foreseen, ...]

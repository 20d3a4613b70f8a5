"""The base class of overflow policies."""

from dataclasses import dataclass
from typing import Any

from kvscope.actions import RECOMPUTE, Action
from kvscope.engine.overflow.outlook import Growth
from kvscope.plan.parts import Conditions
from kvscope.plan.policy import Overflow


@dataclass(frozen=True)
class Victim:
    """A running request that may be preempted."""

    request_id: str  # vLLM's internal id
    prompt_tokens: int
    output_tokens: int  # generated so far
    tokens: int  # tokens whose K and V are in its blocks
    preemptions: int  # previous preemptions
    beside: int = 0  # requests that run with it
    together: int = 1  # requests that are expected to resume or begin in the pass that resumes it
    again: int = 0  # times that it is expected to be preempted at once if it is recomputed
    # Of a request that is preempted, if there is a host pool:
    room: bool = False  # the pool has room for its K and V
    activations: bool = False  # the pool has the activations of all its tokens


@dataclass(frozen=True)
class Outlook:
    """What is to come of a request that begins: its growth, and how it is at each preemption.

    `victims` have their activations if there is room for them and they are saved.
    """

    growth: Growth
    victims: tuple[Victim, ...]


class OverflowPolicy(Overflow):
    """Base class: selects the request to preempt when the cache is full, and the action.

    The fields of a subclass are its configuration keys. Private attributes (`_seen: int = 0`) may
    hold state: each engine has its own instance.
    """

    def prepare(self, experiment: Conditions) -> None:
        """Called once, before anything else, with the experiment that is to run."""

    def engine_arguments(self, host_blocks: int) -> dict[str, Any]:
        """Additional arguments for vLLM's `EngineArgs`; `host_blocks` is the size of the pool."""
        return {}

    def rank(self, request: Victim) -> float:
        """The rank of a running request: the highest is preempted, of equal ranks the last one.

        If a subclass does not override this, vLLM selects the request that arrived last.
        """
        return 0.0

    def action(self, victim: Victim) -> Action:
        """The action for a victim; one that copies blocks needs a subclass of `Swap`."""
        return RECOMPUTE

    def saves(self, outlook: Outlook) -> bool:
        """Whether the activations of a request that begins are written through, if there is a pool.

        A request begins again if it is recomputed.
        """
        return True

    def predicted_s(self, victim: Victim, action: Action) -> float | None:
        """The seconds that the policy expects the action to cost; None if it expects nothing."""
        return None

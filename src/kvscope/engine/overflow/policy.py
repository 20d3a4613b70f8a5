"""The base class of overflow policies."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from kvscope.base.errors import BadInput
from kvscope.plan import costs
from kvscope.plan.actions import RECOMPUTE, Action
from kvscope.plan.fields import impossible
from kvscope.plan.parts import Conditions
from kvscope.plan.policy import CHEAPEST, LAST, Overflow

VictimBlocks = Sequence[int | None]
"""The blocks of a victim as `kv_groups.in_order`; None for one that is not to be copied.

Another running request holds it as well, so that the victim finds it in the cache when it resumes;
or a window has left it behind.
"""


class KnownRequest(Protocol):
    """Attributes of vLLM's requests that policies are told of."""

    request_id: str
    arrival_time: float
    num_prompt_tokens: int
    num_computed_tokens: int
    num_preemptions: int
    max_tokens: int

    @property
    def num_output_tokens(self) -> int:
        """Tokens that it has been given."""

    @property
    def num_tokens(self) -> int:
        """Tokens of its prompt, and those that it has been given."""


@dataclass(frozen=True)
class Victim:
    """A running request that may be preempted."""

    request_id: str  # vLLM's internal id
    prompt_tokens: int
    output_tokens: int  # generated so far
    tokens: int  # tokens whose K and V are in its blocks
    preemptions: int  # previous preemptions
    arrival: float = 0.0  # when the engine received it; what counts is the order
    room: bool = False  # of one that is preempted: the host pool has room for its K and V

    @classmethod
    def of(cls, request: KnownRequest) -> Self:
        """A running request as it is."""
        return cls(
            request_id=request.request_id,
            prompt_tokens=request.num_prompt_tokens,
            output_tokens=request.num_output_tokens,
            tokens=request.num_computed_tokens,
            preemptions=request.num_preemptions,
            arrival=request.arrival_time,
        )


@dataclass(frozen=True)
class Preempted:
    """The action taken with a victim, and the cost that the policy predicted."""

    action: Action
    refused: bool = False  # the policy's action needs the host pool, which had no room
    predicted_s: float | None = None


class Keeper(Protocol):
    """The host pool as a policy sees it (`engine.overflow.host_tier`)."""

    @property
    def present(self) -> bool:
        """Whether there is memory for an action that keeps tokens."""

    def keep(self, action: Action, request_id: str, tokens: int, blocks: VictimBlocks) -> bool:
        """Carry out the action for a victim's first tokens; False if it is to be recomputed."""


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

        If a subclass does not override this, the request is selected by `victim`.
        """
        return 0.0

    @classmethod
    def ranks_itself(cls) -> bool:
        """Whether a subclass overrides `rank`."""
        return cls.rank is not OverflowPolicy.rank

    def action_alone(self, experiment: Conditions) -> Callable[[int], str]:
        """A function: the name of the action for a victim of so many tokens that runs alone."""
        self.prepare(experiment)

        def action_of(tokens: int) -> str:
            return self.action(Victim("", 0, 0, tokens, 0, room=True)).name

        return action_of

    def check(self, experiment: Conditions) -> None:
        """Refuse a victim where the policy ranks requests itself, and one whose cost is unknown."""
        if self.victim != LAST and self.ranks_itself():
            raise impossible(
                f"overflow.victim ({self.victim}) must be {LAST} with overflow={self.name}, which "
                "ranks requests itself",
                "overflow.victim",
            )
        device, by_cost = experiment.device, self.victim == CHEAPEST
        if by_cost and not device.has_costs and device.name not in costs.known_hardware():
            raise impossible(
                f"overflow.victim ({CHEAPEST}) needs the numbers of device={device.name}, which "
                f"no data file has: use one of {costs.hardware_words()}, or another victim",
                "overflow.victim",
            )

    def action(self, victim: Victim) -> Action:
        """The action for a victim; an action that copies blocks needs a subclass of `Swap`."""
        return RECOMPUTE

    def preempt(self, victim: Victim, blocks: VictimBlocks, tier: Keeper) -> Preempted:
        """Carry out the action for a victim with these blocks, before the scheduler frees them.

        It is recomputed if it has no tokens yet, or if the tier has no room to keep them.
        """
        action = self.action(victim) if victim.tokens else RECOMPUTE
        if action.needs_pool and not tier.present:
            raise BadInput(
                f"overflow={self.name} returns the action {action.name!r}, which copies "
                "blocks, but it has no host pool; make its class a subclass of Swap"
            )
        is_kept = tier.keep(action, victim.request_id, victim.tokens, blocks)
        refused = action.needs_pool and not is_kept
        predicted_s = self.predicted_s(victim, action) if victim.tokens else None
        return Preempted(RECOMPUTE if refused else action, refused, predicted_s)

    def predicted_s(self, victim: Victim, action: Action) -> float | None:
        """The seconds that the policy expects the action to cost; None if it expects nothing."""
        return None

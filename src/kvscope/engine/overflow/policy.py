"""What an overflow policy is."""

from dataclasses import dataclass
from typing import Any

from kvscope.actions import RECOMPUTE, Action
from kvscope.plan.policy import Overflow


@dataclass(frozen=True)
class Victim:
    """A request that may be preempted: what its blocks hold."""

    request_id: str  # vLLM's internal id
    prompt_tokens: int
    output_tokens: int  # given so far
    tokens: int  # tokens whose K and V are in its blocks
    preemptions: int  # times it was preempted before


class OverflowPolicy(Overflow):
    """Which request is preempted when the cache is full, and what becomes of its blocks.

    Its fields are the keys of its configuration. Private attributes (`_seen: int = 0`) may hold
    what it learns: an engine has a policy of its own.
    """

    def engine_arguments(self, host_blocks: int) -> dict[str, Any]:
        """What it adds to vLLM's `EngineArgs`; `host_blocks` is the size of its pool in blocks."""
        return {}

    def rank(self, request: Victim) -> float:
        """Of the running requests that of the highest rank is preempted, of equals the last one.

        A policy without this method of its own leaves the choice to vLLM: the one that came last.
        """
        return 0.0

    def action(self, victim: Victim) -> Action:
        """What becomes of the victim's blocks; one that copies them needs a connector (`Swap`)."""
        return RECOMPUTE

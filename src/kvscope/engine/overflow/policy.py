"""What an overflow policy is."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Victim:
    """A request about to be preempted: what its blocks hold."""

    request_id: str  # vLLM's internal id
    prompt_tokens: int
    output_tokens: int  # given so far
    tokens: int  # tokens whose K and V are in its blocks
    preemptions: int  # times it was preempted before


class OverflowPolicy:
    """What becomes of the blocks of a request that is preempted: kept on the host, or given up.

    A policy is made with its settings, the keys of its configuration beside `name`.
    """

    def engine_arguments(self, host_blocks: int) -> dict[str, Any]:
        """What it adds to vLLM's `EngineArgs`; `host_blocks` is the size of its pool in blocks."""
        return {}

    def keeps(self, victim: Victim) -> bool:
        """Whether to copy the victim's blocks to the host pool, if that has room for them."""
        return False

"""What an overflow policy is."""

from dataclasses import dataclass
from typing import Any

from kvscope.errors import BadInput


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
        """What it adds to vLLM's `EngineArgs`; `host_blocks` is the size of its pool in blocks.

        BadInput here: what keeps nothing has no pool. `Swap` has one.
        """
        if host_blocks:
            raise BadInput(
                f"{type(self).__name__} keeps nothing on the host, so it takes no "
                "overflow.host_blocks or .host_gib; a policy that does is a subclass of Swap"
            )
        return {}

    def keeps(self, victim: Victim) -> bool:
        """Whether to copy the victim's blocks to the host pool, if there is one with room."""
        return False

"""The host tier: the memory below the KV cache that keeps tokens of preempted requests.

Each of kvscope's KV connectors is a host tier: its scheduler's half tells the contents and the
free room of the tier, its worker's half the kind of memory. An engine without one, or with another
connector, has a `HostTier` that keeps nothing.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvscope.engine.clock import Clock
from kvscope.engine.overflow.policy import KnownRequest, OverflowPolicy, Victim, VictimBlocks
from kvscope.engine.recording import Recording
from kvscope.plan.actions import Action

if TYPE_CHECKING:
    from kvscope.engine.devices.platform import Platform
    from kvscope.engine.overflow.contents import SwapChecks


class HostTier:
    """Keeps nothing. Subclasses name requests by vLLM's internal ids."""

    present: bool = False
    """Whether there is memory for an action that keeps tokens."""
    asynchronous: bool = False
    """Whether copies run beside passes, and requests may wait for them."""
    recording: Recording
    clock: Clock
    checks: "SwapChecks | None" = None
    """The checks of copies, given the blocks that are copied or rebuilt; None without checks."""

    # ------------------------------------------------------------------ the scheduler's half

    @property
    def host_blocks_used(self) -> int:
        """Blocks of the host pool in use."""
        return 0

    @property
    def host_blocks_total(self) -> int:
        """Blocks of the host pool."""
        return 0

    @property
    def host_blocks_held(self) -> int:
        """Blocks in use that requests hold."""
        return self.host_blocks_used

    @property
    def pool_facts(self) -> dict[str, int]:
        """The entries of run.json on the pool's size."""
        return {"host_blocks_total": self.host_blocks_total}

    def __contains__(self, request_id: str) -> bool:
        """Whether a preempted request's tokens are kept on the host."""
        return False

    def follow(self, policy: OverflowPolicy, scheduler: Any) -> None:
        """Receive the overflow policy and the scheduler, before anything runs."""

    def victim(self, request: KnownRequest) -> Victim:
        """A request that is preempted, with what the host has of it or has room for."""
        return Victim.of(request)

    def loadable(self, request: KnownRequest, cached: int) -> int:
        """Tokens that a waiting request can have from the host, after its `cached` first ones."""
        return 0

    def keep(self, action: Action, request_id: str, tokens: int, blocks: VictimBlocks) -> bool:
        """Carry out the action for a victim's first `tokens` tokens, before its blocks are freed.

        False if the victim is to be recomputed: by the action, or for want of room.
        """
        return False

    def begin(self, recording: Recording) -> None:
        """Record into `recording` from now on; no request is left."""
        self.recording = recording

    def arrived(self, request_id: str, step: int) -> None:
        """Note the pass whose scheduling learned that a request's blocks have been loaded."""

    def joined(self, undone: Any, orders: Any) -> Any:
        """The orders of a schedule, joined with those of an empty schedule before it."""
        return orders

    # --------------------------------------------------------------------- the worker's half

    host_memory: str | None = None
    """The kind of memory of the pool; None without one."""
    pieces: int | None = None
    """Contiguous pieces of a block of the cache; None without a pool."""
    layers: Mapping[str, Any] = {}
    """The cache of each layer, a tensor (blocks, …), where blocks are copied."""

    def attach(self, model: Any, platform: "Platform") -> None:
        """Receive the worker's model and the device, once both are there."""


def tier_of(connector: Any) -> HostTier:
    """The host tier of an engine's half with this KV connector, or without one (None)."""
    return connector if isinstance(connector, HostTier) else HostTier()

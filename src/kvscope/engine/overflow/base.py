"""Base classes of overflow policies that keep tokens on the host, and the classes that they use."""

from kvscope.engine.overflow.host_pool import HostAllocation, HostPool
from kvscope.engine.overflow.policy import KnownRequest, OverflowPolicy, Victim, VictimBlocks
from kvscope.engine.overflow.swap import Swap, blocks_of
from kvscope.plan import costs
from kvscope.plan.policy import HostPools

__all__ = [
    "HostAllocation",
    "HostPool",
    "HostPools",
    "KnownRequest",
    "OverflowPolicy",
    "Swap",
    "Victim",
    "VictimBlocks",
    "blocks_of",
    "costs",
]

"""Overflow policies of vLLM's scheduler, which keep tokens of preempted requests on the host.

- `overflow`: `Swap`, the base class of an `OverflowPolicy` whose `connector` copies
  (`kvscope.api.vllm`); `blocks_of` of a pool by its settings, `HostPools`; the `Victim` that a
  policy is given, its `VictimBlocks`, and the `KnownRequest` of vLLM's that one is made of;
  `HostPool` with the `HostAllocation` of each request; `costs`, those of preemptions by the
  installed cost model
"""

from kvscope.engine.overflow import base as overflow

__all__ = ["overflow"]

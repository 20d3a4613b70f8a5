"""`native` and `native_full`: vLLM's own offloading, its `OffloadingConnector`.

As passes fill blocks, vLLM stores them on the host, and a preempted request loads what is there
when it resumes; so does a new request whose prompt begins like one that is stored. The rest is
computed again. Copies run beside the passes. Once the host is full, the blocks that were not used
for longest make room.
"""

import mmap
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import PrivateAttr

from kvscope.api.policies import overflow
from kvscope.api.settings import Conditions, Label, fields, impossible
from kvscope.api.tables import actions, kv_plan
from kvscope_connectors.action import NATIVE


def page_aligned(block_bytes: int) -> int:
    """Bytes of a block on the host, where vLLM lays each out in whole pages."""
    return -(-block_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


class Native(overflow.OverflowPolicy):
    """vLLM's offloading as users get it: blocks of prompts are stored, those of outputs are not.

    The host has `host_blocks` blocks, or as many as fit into `host_gib`.
    """

    only_action: ClassVar[str | None] = NATIVE.name
    one_of: ClassVar[tuple[str, ...]] = ("host_blocks", "host_gib")
    orders_jobs: ClassVar[bool] = True
    stores_outputs: ClassVar[bool] = False
    worker: ClassVar[str] = "kvscope_connectors.worker:HostOffloadingSpec"
    """Worker that copies on a host without a device; elsewhere vLLM's worker copies."""

    host_gib: Annotated[fields.Gib | None, Label("host pool (GiB)", "host pool {} GiB")] = None
    host_blocks: Annotated[
        fields.Count | None, Label("host pool (blocks)", "host pool {} blocks")
    ] = None

    _settings: dict[str, Any] = PrivateAttr(default_factory=dict)

    def prepare(self, experiment: Conditions) -> None:
        """Choose the worker, and the bytes of a block on the host."""
        self._settings["cpu_bytes_to_use"] = self.pool_bytes(experiment)
        if experiment.device.allocates and experiment.device.copies_awaited:
            module, _, name = self.worker.partition(":")
            self._settings |= {"spec_module_path": module, "spec_name": name}

    def pool_blocks(self, experiment: Conditions) -> int:
        """Blocks of the host; of host_gib, as many as fit."""
        settings = {"host_blocks": self.host_blocks, "host_gib": self.host_gib}
        return overflow.blocks_of(settings, page_aligned(experiment.block_bytes))

    def pool_bytes(self, experiment: Conditions) -> int:
        """Bytes of the host's blocks."""
        return self.pool_blocks(experiment) * page_aligned(experiment.block_bytes)

    def refusal(self, groups: Sequence[kv_plan.KvGroup]) -> str:
        """Reason if there are several KV groups: jobs are recorded by one block table."""
        return kv_plan.unless_one_block_table(groups, f"overflow={self.name}")

    @classmethod
    def host_pools(
        cls, settings: Mapping[str, Any], block_bytes: overflow.HostPools, found: overflow.HostPools
    ) -> overflow.HostPools | None:
        """Blocks of K and V: as stated, or as many as fit."""
        return overflow.HostPools(kv=overflow.blocks_of(settings, page_aligned(block_bytes.kv)))

    def engine_arguments(self, host_blocks: int) -> dict[str, Any]:
        """Engine arguments for vLLM's connector, in the subclass that records its jobs."""
        return {
            "kv_transfer_config": {
                "kv_connector": "NativeConnector",
                "kv_connector_module_path": "kvscope_connectors.connector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {
                    "policy": self.name,
                    "offload_prompt_only": not self.stores_outputs,
                    **self._settings,
                },
            }
        }

    def action(self, victim: overflow.Victim) -> actions.Action:
        """NATIVE for every victim: what the host has of it is known when it resumes."""
        return NATIVE

    def check(self, experiment: Conditions) -> None:
        """Refuse a host pool smaller than one block, and blocks that have all layers together."""
        if experiment.cache.layout == "by_block":
            raise impossible(
                f"cache.layout (by_block) must be another with overflow={self.name}: vLLM's "
                "offloading lays the cache out layer by layer",
                "cache.layout",
                "overflow",
            )
        if not self.pool_blocks(experiment):
            raise impossible(
                f"overflow.host_gib ({self.host_gib}) must hold at least one block of "
                f"{page_aligned(experiment.block_bytes):,} bytes",
                "overflow.host_gib",
            )
        super().check(experiment)


class NativeFull(Native):
    """`native` with `offload_prompt_only` off: blocks of outputs are stored, too."""

    only_action: ClassVar[str | None] = NATIVE.name
    stores_outputs: ClassVar[bool] = True

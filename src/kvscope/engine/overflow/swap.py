"""`swap`: a preempted request's blocks are copied to a host pool, and back when it resumes."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from kvscope.engine.overflow.policy import OverflowPolicy, Victim
from kvscope.plan.actions import SWAP, Action
from kvscope.plan.fields import GIB, Count, Gib, Label, impossible
from kvscope.plan.parts import Conditions
from kvscope.plan.policy import HostPools
from kvscope.tables.kv_group import KvGroup
from kvscope.tables.kv_plan import unless_movable


def blocks_of(settings: Mapping[str, Any], block_bytes: int) -> int:
    """Blocks of a pool by the policy's settings: as stated, or as many as fit into the GiB."""
    return int(settings.get("host_blocks") or (settings.get("host_gib") or 0) * GIB // block_bytes)


class Swap(OverflowPolicy):
    """Swap every victim while the host pool has room; recompute the others.

    `host_memory` is page-locked or pageable. `copies` are issued block by block, as vLLM 0.4.2
    did, or as few as the pool's holes allow. The pool has `host_blocks` blocks, or as many as fit
    into `host_gib`. `connector` is the KV connector that copies, 'module:Class'.
    """

    only_action: ClassVar[str | None] = SWAP.name
    resumes_at_once: ClassVar[bool] = True
    connector: ClassVar[str] = "kvscope.engine.vllm.connectors.swap:SwapConnector"
    one_of: ClassVar[tuple[str, ...]] = ("host_blocks", "host_gib")
    in_id: ClassVar[tuple[str, ...]] = ("host_memory", "copies")

    host_memory: Annotated[Literal["pinned", "pageable"], Label("host memory", "{}")] = "pinned"
    copies: Annotated[Literal["per_block", "coalesced"], Label("copies", "{}")] = "per_block"
    host_gib: Annotated[Gib | None, Label("host pool (GiB)", "host pool {} GiB")] = None
    host_blocks: Annotated[Count | None, Label("host pool (blocks)", "host pool {} blocks")] = None

    def pool_blocks(self, experiment: Conditions) -> int:
        """Blocks of the host pool; of host_gib, as many as fit."""
        block_bytes = self.pool_block_bytes(experiment)
        return blocks_of({"host_blocks": self.host_blocks, "host_gib": self.host_gib}, block_bytes)

    @classmethod
    def host_pools(
        cls, settings: Mapping[str, Any], block_bytes: HostPools, found: HostPools
    ) -> HostPools | None:
        """Blocks of K and V: as stated, or as many as fit."""
        return HostPools(kv=blocks_of(settings, block_bytes.kv))

    def refusal(self, groups: Sequence[KvGroup]) -> str:
        """States are not moved."""
        return unless_movable(groups, f"overflow={self.name}")

    def pool_block_bytes(self, experiment: Conditions) -> int:
        """Bytes of a block in the host pool."""
        return experiment.block_bytes

    def pool_bytes(self, experiment: Conditions) -> int:
        """Bytes of the host pool."""
        return self.pool_blocks(experiment) * self.pool_block_bytes(experiment)

    def staging_bytes(self, experiment: Conditions) -> int:
        """Bytes that coalesced copies gather of the longest request, for one piece of a block."""
        if self.copies == "per_block":
            return 0
        pieces = experiment.cache.pieces(experiment.model.layers_apart)
        return experiment.request_blocks * experiment.block_bytes // pieces

    def engine_arguments(self, host_blocks: int) -> dict[str, Any]:
        """Arguments that select kvscope's KV connector, by which vLLM moves blocks."""
        module, _, name = self.connector.partition(":")
        settings = {
            "policy": self.name,
            "host_blocks": host_blocks,
            "pinned": self.host_memory == "pinned",
            "coalesced": self.copies == "coalesced",
        }
        return {
            "kv_transfer_config": {
                "kv_connector": name,
                "kv_connector_module_path": module,
                "kv_role": "kv_both",
                "kv_connector_extra_config": settings,
            }
        }

    def action(self, victim: Victim) -> Action:
        """SWAP for every victim."""
        return SWAP

    def check(self, experiment: Conditions) -> None:
        """Refuse a host pool smaller than one block."""
        if not self.pool_blocks(experiment):
            raise impossible(
                f"overflow.host_gib ({self.host_gib}) must hold at least one block of "
                f"{self.pool_block_bytes(experiment):,} bytes",
                "overflow.host_gib",
            )
        super().check(experiment)

"""`swap`: a preempted request's blocks are copied to a host pool, and back when it resumes."""

from typing import Any, ClassVar

from kvscope.engine.overflow.policy import OverflowPolicy, Victim
from kvscope.errors import BadInput


class Swap(OverflowPolicy):
    """Keep every victim's blocks while the host pool has room; recompute the others.

    host_memory: 'pinned' (page-locked) or 'pageable'. copies: 'per_block' (as vLLM 0.4.2 issued
    them) or 'coalesced' (as few as the pool's holes allow). BadInput for others. The pool's size
    is settled by the experiment, from `host_gib` or `host_blocks`.
    """

    connector: ClassVar[str] = "kvscope.engine.overflow.connector:SwapConnector"

    def __init__(
        self,
        host_memory: str = "pinned",
        copies: str = "per_block",
        host_gib: float | None = None,
        host_blocks: int | None = None,
    ) -> None:
        for key, value, allowed in (
            ("host_memory", host_memory, ("pinned", "pageable")),
            ("copies", copies, ("per_block", "coalesced")),
        ):
            if value not in allowed:
                raise BadInput(f"overflow.{key} is {value!r} but must be one of {allowed}")
        self.host_memory, self.copies = host_memory, copies

    def engine_arguments(self, host_blocks: int) -> dict[str, Any]:
        """vLLM moves blocks through a KV connector; ours is one. BadInput without a pool."""
        if not host_blocks:
            raise BadInput("the host pool has no size: set overflow.host_blocks or .host_gib")
        module, _, name = self.connector.partition(":")
        settings = {
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

    def keeps(self, victim: Victim) -> bool:
        """Every one."""
        return True

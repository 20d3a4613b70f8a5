"""Base classes of KV connectors, and the classes that they use."""

from kvscope.engine.overflow.host_tier import HostTier
from kvscope.engine.request_ids import external_id
from kvscope.engine.vllm.connectors.copies import PerBlock, host_planes
from kvscope.engine.vllm.connectors.swap import Blocks, SwapConnector, SwapOrders
from kvscope.engine.vllm.connectors.virtual import VirtualWorker
from kvscope.engine.vllm.kv_groups import require_one_block_table
from kvscope.engine.vllm.link import Link
from kvscope.engine.vllm.scheduled import contexts

__all__ = [
    "Blocks",
    "HostTier",
    "Link",
    "PerBlock",
    "SwapConnector",
    "SwapOrders",
    "VirtualWorker",
    "contexts",
    "external_id",
    "host_planes",
    "require_one_block_table",
]

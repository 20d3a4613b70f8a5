"""Base classes of KV connectors that move blocks, and what their scheduler's half is given."""

from kvscope.engine.request_ids import external_id
from kvscope.engine.vllm.connectors.swap import Blocks, SwapConnector, SwapOrders
from kvscope.engine.vllm.kv_groups import require_one_block_table
from kvscope.engine.vllm.link import Link
from kvscope.engine.vllm.scheduled import contexts

__all__ = [
    "Blocks",
    "Link",
    "SwapConnector",
    "SwapOrders",
    "contexts",
    "external_id",
    "require_one_block_table",
]

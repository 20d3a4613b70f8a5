"""Access to vLLM inside one of its processes; importing this module imports vLLM.

Its parts are those of the releases that kvscope schedules with; `kvscope.api.vllm_facts` is for
servers of all that are recorded.

- `kv_planning` has `plan`, vLLM's own of the KV cache of a model, and `NoRoom` where memory is too
  little
- `attention`: the base classes of a backend, `AnyBlocks`, its `CausalAttention` and `BatchBuilder`,
  which makes `AttentionMetadata` of vLLM's `CommonAttentionMetadata`; `batch_rows`, each a
  `BatchRow`
- `connectors`: `HostTier`, the base class of KV connectors, and `SwapConnector`, of those that move
  blocks, with its `SwapOrders` of `Blocks`; the `VirtualWorker` of orders, and the `Link` on which
  they take virtual time; `contexts` of the requests of a pass, their `external_id`;
  `require_one_block_table`; `PerBlock` copies, `host_planes` that they are made to
"""

from kvscope.engine.vllm import kv_planning
from kvscope.engine.vllm.attention import base as attention
from kvscope.engine.vllm.connectors import base as connectors

__all__ = ["attention", "connectors", "kv_planning"]

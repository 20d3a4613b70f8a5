"""Access to vLLM inside one of its processes; importing this module imports vLLM.

- `platforms` says what vLLM computes on: `is_cuda`, `is_vllms`
- `kv_planning` has `plan`, vLLM's own of the KV cache of a model
- `attention`: the base classes of a backend, `AnyBlocks`, its `CausalAttention` and `BatchBuilder`,
  which makes `AttentionMetadata` of vLLM's `CommonAttentionMetadata`; `batch_rows`, each a
  `BatchRow`
- `connectors`: `HostTier`, the base class of KV connectors, and `SwapConnector`, of those that move
  blocks, with its `SwapOrders` of `Blocks`; the `VirtualWorker` of orders, and the `Link` on which
  they take virtual time; `contexts` of the requests of a pass, their `external_id`;
  `require_one_block_table`; `PerBlock` copies, `host_planes` that they are made to
"""

from kvscope.engine.vllm import kv_planning, platforms
from kvscope.engine.vllm.attention import base as attention
from kvscope.engine.vllm.connectors import base as connectors
from kvscope.engine.vllm.kv_groups import groups_of

__all__ = ["attention", "connectors", "groups_of", "kv_planning", "platforms"]

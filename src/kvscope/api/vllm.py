"""Access to vLLM inside one of its processes; importing this module imports vLLM.

`platforms` says what vLLM computes on: `is_cuda`, `is_vllms`. `kv_planning` has `plan`, vLLM's own
of the KV cache of a model.
"""

from kvscope.engine.vllm import kv_planning, platforms
from kvscope.engine.vllm.kv_groups import groups_of

__all__ = ["groups_of", "kv_planning", "platforms"]

"""Access to vLLM inside one of its processes; importing this module imports vLLM.

`platforms` says what vLLM computes on: `is_cuda`, `is_vllms`.
"""

from kvscope.engine.vllm import platforms
from kvscope.engine.vllm.kv_groups import groups_of

__all__ = ["groups_of", "platforms"]

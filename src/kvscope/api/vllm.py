"""What is asked of vLLM in a process of it; importing this imports vLLM.

`platforms` says what vLLM computes on: `is_cuda`, `is_vllms`.
"""

from kvscope.engine.vllm import platforms
from kvscope.engine.vllm.kv_groups import groups_of

__all__ = ["groups_of", "platforms"]

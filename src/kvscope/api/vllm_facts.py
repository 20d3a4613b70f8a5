"""Facts of vLLM inside one of its processes, of any release that is recorded; imports vLLM.

Servers of earlier releases lack parts of vLLM that `kvscope.api.vllm` imports.

- `groups_of` a KV cache as vLLM has configured it: its KV groups
- `platforms` says what vLLM computes on: `is_cuda`, `is_vllms`
"""

from kvscope.engine.vllm import platforms
from kvscope.engine.vllm.kv_groups import groups_of

__all__ = ["groups_of", "platforms"]

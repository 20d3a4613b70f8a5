"""What is asked of vLLM in a process of it; importing this imports vLLM."""

from kvscope.engine.devices.cuda import platform_is_vllms
from kvscope.engine.kv_groups import groups_of

__all__ = ["groups_of", "platform_is_vllms"]

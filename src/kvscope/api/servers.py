"""Releases of vLLM, and its servers as a recorder meets them; importing this imports no vLLM.

- `versions`: `imported`, that of this process, and `unless_recorded`, why one is not
- `servers`: `on_construction` of a scheduler, `SCHEDULERS`, vLLM's own, and `LOGGER`
"""

from kvscope.engine.vllm import servers, versions

__all__ = ["servers", "versions"]

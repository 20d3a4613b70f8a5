"""Requests are named as the workload names them; vLLM appends to these ids."""

from functools import lru_cache


@lru_cache(4096)
def external_id(internal_id: str) -> str:
    """The workload's request id: vLLM appends '-' and random characters to it."""
    return internal_id.rsplit("-", 1)[0]

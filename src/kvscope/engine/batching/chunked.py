"""`chunked`: prefill and decode share a forward pass, prompts are cut to a token budget."""

from typing import Any

from kvscope.engine.batching.policy import BatchingPolicy


class Chunked(BatchingPolicy):
    """vLLM's chunked prefill with a budget of `chunk_tokens` tokens a pass, decode included."""

    def __init__(self, chunk_tokens: int) -> None:
        self.chunk_tokens = chunk_tokens

    def engine_arguments(self) -> dict[str, Any]:
        """The budget is of scheduled tokens: vLLM's batch may be larger, requests stay free."""
        return {"enable_chunked_prefill": True, "max_num_scheduled_tokens": self.chunk_tokens}

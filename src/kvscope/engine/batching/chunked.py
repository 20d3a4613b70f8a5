"""`chunked`: prefill and decode share a forward pass, prompts are cut to a token budget."""

from typing import Annotated, Any

from kvscope.engine.batching.policy import BatchingPolicy
from kvscope.plan.fields import Label, Tokens, impossible
from kvscope.plan.parts import Conditions


class Chunked(BatchingPolicy):
    """vLLM's chunked prefill with a budget of `chunk_tokens` tokens a pass, decode included."""

    chunk_tokens: Annotated[Tokens, Label("chunk (tokens)", "{} tokens")]

    @property
    def slug(self) -> str:
        """The policy's name followed by the budget."""
        return f"{self.name}{self.chunk_tokens}"

    @property
    def pass_tokens(self) -> int:
        """The token budget of a pass: `chunk_tokens`."""
        return self.chunk_tokens

    def engine_arguments(self) -> dict[str, Any]:
        """The budget limits scheduled tokens; vLLM's max_num_batched_tokens may be larger."""
        return {"enable_chunked_prefill": True, "max_num_scheduled_tokens": self.chunk_tokens}

    def check(self, experiment: Conditions) -> None:
        """Refuse a budget above engine.max_num_batched_tokens."""
        most = experiment.engine.max_num_batched_tokens
        if self.chunk_tokens > most:
            raise impossible(
                f"batching.chunk_tokens ({self.chunk_tokens}) must not exceed "
                f"engine.max_num_batched_tokens ({most})",
                "batching.chunk_tokens",
                "engine.max_num_batched_tokens",
            )

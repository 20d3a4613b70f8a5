"""A batching policy that cuts prompts before a pass is full."""

from typing import Annotated, Any, ClassVar, Literal

from kvscope.api.settings import Conditions, Label, fields
from kvscope.engine.batching.policy import BatchingPolicy


class Sliced(BatchingPolicy):
    """Computes at most `slice_tokens` of each prompt in a pass."""

    cuts_prompts: ClassVar[Literal["freely"]] = "freely"

    slice_tokens: Annotated[fields.Tokens, Label("slice (tokens)", "slices of {}")] = 24

    def engine_arguments(self) -> dict[str, Any]:
        return {
            "enable_chunked_prefill": True,
            "long_prefill_token_threshold": self.slice_tokens,
        }

    def check(self, experiment: Conditions) -> None:
        """A prompt may be longer than a pass."""

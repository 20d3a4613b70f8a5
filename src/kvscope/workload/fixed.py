"""`fixed`: requests of one length."""

from typing import Annotated, ClassVar

from kvscope.plan.fields import Label, Requests, Tokens
from kvscope.plan.workload import Lengths, Workload


class Fixed(Workload):
    """Equal prompt and output lengths for all requests."""

    length_keys: ClassVar[tuple[str, ...]] = ("prompt_tokens", "output_tokens")

    num_requests: Annotated[Requests, Label("requests", "{} requests")]
    prompt_tokens: Annotated[Tokens, Label("prompt tokens", "{} prompt tokens")]
    output_tokens: Annotated[Tokens, Label("output tokens", "{} output tokens")]

    def lengths(self, seed: int) -> list[Lengths]:
        """Equal lengths for all requests; the seed has no effect."""
        return [Lengths(self.prompt_tokens, self.output_tokens)] * self.num_requests

"""`uniform`: every total length in [min_tokens, max_tokens] is equally likely."""

from typing import Annotated, ClassVar

from pydantic import Field

from kvscope.plan.fields import Label, Real, Requests, Tokens, impossible
from kvscope.plan.parts import Conditions
from kvscope.plan.workload import Lengths, Workload, split_total
from kvscope.workload.streams import Purpose, stream


class Uniform(Workload):
    """Total lengths are drawn, both ends included, and split by the ratio."""

    length_keys: ClassVar[tuple[str, ...]] = ("max_tokens",)

    num_requests: Annotated[Requests, Label("requests", "{} requests")]
    min_tokens: Annotated[Tokens, Field(ge=2), Label("shortest request (tokens)")]
    max_tokens: Annotated[Tokens, Field(ge=2), Label("longest request (tokens)")]
    prompt_to_output_ratio: Annotated[Real, Field(gt=0), Label("prompt tokens per output token")]

    def lengths(self, seed: int) -> list[Lengths]:
        """The lengths, drawn from the stream Purpose.LENGTHS."""
        draw = stream(seed, Purpose.LENGTHS)
        totals = draw.integers(
            self.min_tokens, self.max_tokens, size=self.num_requests, endpoint=True
        )
        return [split_total(int(total), self.prompt_to_output_ratio) for total in totals]

    @property
    def mean_tokens(self) -> float:
        """The expected total length."""
        return (self.min_tokens + self.max_tokens) / 2

    def expected(self) -> tuple[float, float, float]:
        """The expected values of the distribution; nothing is drawn."""
        share, mean = 1 / (1 + self.prompt_to_output_ratio), self.mean_tokens
        return mean * (1 - share), max(1.0, mean * share), max(1.0, self.max_tokens * share)

    def check(self, experiment: Conditions) -> None:
        """Refuse, too, bounds in the wrong order."""
        if self.min_tokens > self.max_tokens:
            raise impossible(
                f"workload.min_tokens ({self.min_tokens}) must not exceed workload.max_tokens "
                f"({self.max_tokens})",
                "workload.min_tokens",
                "workload.max_tokens",
            )
        super().check(experiment)

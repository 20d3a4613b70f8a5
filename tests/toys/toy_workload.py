"""A workload: short and long requests by turns."""

from typing import Annotated, ClassVar

from kvscope.api.settings import Conditions, Label, fields, impossible
from kvscope.plan.workload import Lengths, Workload, split_total


class Pairs(Workload):
    """Short requests, each followed by a long one."""

    length_keys: ClassVar[tuple[str, ...]] = ("long_tokens",)

    num_requests: fields.Requests = 8
    short_tokens: Annotated[fields.Tokens, Label("short requests (tokens)")] = 40
    long_tokens: Annotated[fields.Tokens, Label("long requests (tokens)", "up to {} tokens")] = 160

    def lengths(self, seed: int) -> list[Lengths]:
        totals = (self.short_tokens, self.long_tokens)
        return [split_total(totals[number % 2], 2.0) for number in range(self.num_requests)]

    def check(self, conditions: Conditions) -> None:
        if self.short_tokens > self.long_tokens:
            raise impossible(
                f"workload.short_tokens ({self.short_tokens}) must not exceed "
                f"workload.long_tokens ({self.long_tokens})",
                "workload.short_tokens",
            )
        super().check(conditions)

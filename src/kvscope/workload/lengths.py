"""What every generator gives: the lengths of each request."""

from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of a request's prompt and of its output."""

    prompt: int
    output: int

    @property
    def total(self) -> int:
        """Prompt and output tokens together."""
        return self.prompt + self.output


def split(total: int, prompt_to_output_ratio: float) -> Lengths:
    """Split a total as ⌈total / (1 + ratio)⌉ output tokens and the rest, both at least one."""
    output = ceil(total / (1 + prompt_to_output_ratio))
    output = min(max(output, 1), total - 1)
    return Lengths(total - output, output)

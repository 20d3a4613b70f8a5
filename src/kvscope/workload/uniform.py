"""Uniform: every total length in [min_tokens, max_tokens] is alike likely."""

from kvscope.plan.experiment import Uniform
from kvscope.workload.lengths import Lengths, split
from kvscope.workload.streams import Purpose, stream


def lengths(workload: Uniform, seed: int) -> list[Lengths]:
    """Draw total lengths, both ends included, and split each by the ratio."""
    draw = stream(seed, Purpose.LENGTHS)
    totals = draw.integers(
        workload.min_tokens, workload.max_tokens, size=workload.num_requests, endpoint=True
    )
    return [split(int(total), workload.prompt_to_output_ratio) for total in totals]

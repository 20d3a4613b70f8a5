"""Fixed: requests of one length."""

from kvscope.plan.experiment import Fixed
from kvscope.workload.lengths import Lengths


def lengths(workload: Fixed) -> list[Lengths]:
    """The same prompt and output lengths for every request."""
    return [Lengths(workload.prompt_tokens, workload.output_tokens)] * workload.num_requests

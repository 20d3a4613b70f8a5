"""The amount of work of an experiment, from which memory and walltime are estimated."""

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from kvscope.plan.sources import verify

if TYPE_CHECKING:
    from kvscope.plan.experiment import Experiment
    from kvscope.plan.workload import Workload


@dataclass(frozen=True)
class Work:
    """The work of serving an experiment's requests once.

    Numbers are exact for fixed and recorded lengths, and expected values for random lengths.
    """

    requests: int
    prompt_tokens: float
    output_tokens: float
    longest_output: float  # tokens
    last_arrival_s: float

    @property
    def tokens(self) -> float:
        """Prompt and output tokens of all requests."""
        return self.prompt_tokens + self.output_tokens

    @property
    def mean_tokens(self) -> float:
        """Prompt and output tokens of a request, in the mean."""
        return self.tokens / self.requests


def expected_work(experiment: "Experiment") -> Work:
    """The work of serving an experiment's requests once; BadInput if its trace cannot be used."""
    verify(experiment.workload)
    return _work(experiment.workload)


@lru_cache(maxsize=64)
def _work(workload: "Workload") -> Work:
    count, (prompt, output, longest) = workload.count, workload.expected()
    return Work(count, count * prompt, count * output, longest, _last_arrival_s(workload, count))


def _last_arrival_s(workload: "Workload", count: int) -> float:
    if workload.arrival == "poisson" and workload.rate_per_s:
        return count / workload.rate_per_s + workload.pauses_s()
    return (workload.times()[-1] if workload.arrival == "trace" else 0.0) + workload.pauses_s()

"""How much an experiment has to do: what its memory and its walltime are estimated from."""

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from kvscope.plan import traces
from kvscope.plan.sources import verify

if TYPE_CHECKING:
    from kvscope.plan.experiment import Experiment, ShareGPT, Spread, Workload

# Tokens of a conversation's prompt and output, in the mean, as vLLM's benchmark of ShareGPT counts
# them.
CONVERSATION = (215, 198)


@dataclass(frozen=True)
class Work:
    """What the engine does to serve an experiment's requests once.

    Exact where the experiment says or records it; of drawn lengths the expected values.
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


def work(experiment: "Experiment") -> Work:
    """The work of serving an experiment's requests once; BadInput if its trace cannot be used."""
    verify(experiment.workload)
    return _work(experiment.workload)


@lru_cache(maxsize=64)
def _work(workload: "Workload") -> Work:
    if workload.name == "trace":
        lengths = [(r.prompt, r.output) for r in traces.requests(workload)]
        count, prompt = len(lengths), float(sum(p for p, _ in lengths))
        output, longest = float(sum(o for _, o in lengths)), float(max(o for _, o in lengths))
    else:
        count = workload.num_requests
        mean_prompt, mean_output, longest = _lengths(workload)
        prompt, output = count * mean_prompt, count * mean_output
    return Work(count, prompt, output, longest, _last_arrival_s(workload, count))


def _lengths(workload: "Workload") -> tuple[float, float, float]:
    """Of a request the expected tokens of prompt and output, and the most of the output."""
    match workload.name:
        case "fixed":
            return workload.prompt_tokens, workload.output_tokens, workload.output_tokens
        case "uniform":
            return _split((workload.min_tokens + workload.max_tokens) / 2, workload)
        case "zipf":
            # Ranks have a density as x^-θ, whose mean is this share of their number; the
            # generator's own mean is up to a third higher where θ is near 1.
            share = (1 - workload.theta) / (2 - workload.theta)
            span = workload.max_tokens - workload.min_tokens
            return _split(workload.min_tokens + share * span, workload)
        case "sharegpt":
            return _conversation(workload)
    raise AssertionError(workload.name)


def _split(mean: float, workload: "Spread") -> tuple[float, float, float]:
    share = 1 / (1 + workload.prompt_to_output_ratio)
    return mean * (1 - share), max(1.0, mean * share), max(1.0, workload.max_tokens * share)


def _conversation(workload: "ShareGPT") -> tuple[float, float, float]:
    prompt, output = CONVERSATION
    shorter = min(1.0, workload.max_tokens / 2 / (prompt + output))  # those beyond are left out
    return prompt * shorter, output * shorter, workload.max_tokens / 2


def _last_arrival_s(workload: "Workload", count: int) -> float:
    if workload.arrival == "poisson" and workload.rate_per_s:
        return count / workload.rate_per_s
    if workload.arrival == "trace" and workload.name == "trace":
        return traces.arrivals(workload)[-1]
    return 0.0

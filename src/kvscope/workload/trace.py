"""Trace: the lengths of requests that were recorded somewhere."""

from kvscope.plan import traces
from kvscope.plan.experiment import Trace
from kvscope.workload.lengths import Lengths


def lengths(workload: Trace) -> list[Lengths]:
    """The lengths of the file's first num_requests requests (all if null), in its order."""
    return [Lengths(r.prompt, r.output) for r in traces.requests(workload)]

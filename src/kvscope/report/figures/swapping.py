"""The cost of one preemption, and the bandwidth of swapping."""

from kvscope.report.figures.over_experiments import Panel, over_experiments
from kvscope.report.figures.resume_overhead import preempts
from kvscope.report.words import COST_OF_ONE, HOST_PEAK, SWAP_BANDWIDTH

FIGURE = over_experiments(
    "One preemption, and swapping",
    "Net resume overhead over preemptions; bytes of K and V copied to the host and back over the "
    "time of the copies; the peak share of the host pool in use.",
    [
        Panel("Net cost of a preemption", (COST_OF_ONE,)),
        Panel("Swap bandwidth", (SWAP_BANDWIDTH,)),
        Panel("Host pool", (HOST_PEAK,)),
    ],
    wanted=preempts,
    order=120,
)

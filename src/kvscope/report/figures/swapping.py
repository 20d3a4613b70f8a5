"""What one preemption costs, and how fast blocks are copied where it swaps."""

from kvscope.report.figures.over_experiments import Panel, over_experiments
from kvscope.report.figures.resume_overhead import preempts
from kvscope.report.words import COST_OF_ONE, HOST_PEAK, SWAP_BANDWIDTH

FIGURE = over_experiments(
    "swapping",
    "One preemption, and swapping",
    "Net resume overhead over preemptions; bytes of K and V copied to the host and back over the "
    "time of the copies; the largest share of the host pool that was ever in use.",
    [
        Panel("Net cost of a preemption", (COST_OF_ONE,)),
        Panel("Swap bandwidth", (SWAP_BANDWIDTH,)),
        Panel("Host pool", (HOST_PEAK,)),
    ],
    wanted=preempts,
)

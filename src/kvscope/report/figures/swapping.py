"""The cost of one preemption, and the bandwidth of swapping."""

from kvscope.report.figures.over_experiments import Panel, over_experiments
from kvscope.report.figures.resume_overhead import preempts

FIGURE = over_experiments(
    "One preemption, and swapping",
    "Net resume overhead over preemptions; bytes of K and V copied to the host and back over the "
    "time of the copies; the peak share of the host pool in use.",
    [
        Panel("Net cost of a preemption", ("resume_overhead_net_per_preemption_s",)),
        Panel("Swap bandwidth", ("swap_bandwidth_bytes_per_s",)),
        Panel("Host pool", ("host_block_utilization_peak",)),
    ],
    wanted=preempts,
    order=120,
)

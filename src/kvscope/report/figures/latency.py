"""Time to first token and inter-token latency of each experiment."""

from kvscope.report.figures.over_experiments import Panel, over_experiments
from kvscope.report.words import ITL_MEAN, ITL_P50, ITL_P99, TTFT_MEAN, TTFT_P50, TTFT_P99

FIGURE = over_experiments(
    "latency",
    "Latency",
    "Time to first token (TTFT) over requests and inter-token latency (ITL) over output tokens: "
    "mean, median and 99th percentile of each repeat, then the mean over repeats.",
    [
        Panel("Time to first token", (TTFT_MEAN, TTFT_P50, TTFT_P99), shared=False),
        Panel("Inter-token latency", (ITL_MEAN, ITL_P50, ITL_P99), shared=False),
    ],
)

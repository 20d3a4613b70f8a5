"""Time to first token, inter-token latency and time per output token of each experiment."""

from kvscope.report.figures.over_experiments import Panel, over_experiments
from kvscope.report.words import (
    ITL_MEAN,
    ITL_P50,
    ITL_P99,
    TPOT_MEAN,
    TPOT_P50,
    TPOT_P99,
    TTFT_MEAN,
    TTFT_P50,
    TTFT_P99,
)

FIGURE = over_experiments(
    "Latency",
    "Time to first token (TTFT) and time per output token (TPOT: the time from the first token to "
    "the last, over the tokens after the first) over requests; inter-token latency (ITL) over "
    "output tokens. Mean, median and 99th percentile of each repeat, then the mean over repeats.",
    [
        Panel("Time to first token", (TTFT_MEAN, TTFT_P50, TTFT_P99), shared=False),
        Panel("Inter-token latency", (ITL_MEAN, ITL_P50, ITL_P99), shared=False),
        Panel("Time per output token", (TPOT_MEAN, TPOT_P50, TPOT_P99), shared=False),
    ],
    order=50,
)

"""Time to first token, inter-token latency and time per output token of each experiment."""

from kvscope.report.figures.over_experiments import Panel, over_experiments

FIGURE = over_experiments(
    "Latency",
    "Time to first token (TTFT) and time per output token (TPOT: the time from the first token to "
    "the last, over the tokens after the first) over requests; inter-token latency (ITL) over "
    "output tokens. Mean, median and 99th percentile of each repeat, then the mean over repeats.",
    [
        Panel("Time to first token", ("ttft_mean_s", "ttft_p50_s", "ttft_p99_s"), shared=False),
        Panel("Inter-token latency", ("itl_mean_s", "itl_p50_s", "itl_p99_s"), shared=False),
        Panel("Time per output token", ("tpot_mean_s", "tpot_p50_s", "tpot_p99_s"), shared=False),
    ],
    order=50,
)

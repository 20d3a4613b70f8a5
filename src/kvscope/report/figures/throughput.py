"""Throughput of each experiment, with and without stalls."""

from kvscope.report.figures.over_experiments import Panel, over_experiments

FIGURE = over_experiments(
    "Throughput",
    "Prompt and output tokens of all requests over the makespan. Without stalls: over the makespan "
    "minus the time of stalled passes beyond the median of their class. Mean over repeats.",
    [Panel("Throughput", ("throughput_tokens_per_s", "throughput_without_stalls_tokens_per_s"))],
    order=10,
)

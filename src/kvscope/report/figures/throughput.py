"""Throughput of each experiment, with and without stalls."""

from kvscope.report.figures.over_experiments import Panel, over_experiments
from kvscope.report.words import THROUGHPUT, WITHOUT_STALLS

FIGURE = over_experiments(
    "Throughput",
    "Prompt and output tokens of all requests over the makespan. Without stalls: over the makespan "
    "minus the time of stalled passes beyond the median of their class. Mean over repeats.",
    [Panel("Throughput", (THROUGHPUT, WITHOUT_STALLS))],
    order=10,
)

"""Preemptions and recomputed tokens of each experiment."""

from kvscope.report.figures.over_experiments import Panel, over_experiments
from kvscope.report.words import PREEMPTIONS, RECOMPUTED

FIGURE = over_experiments(
    "Preemptions",
    "Preemptions, and tokens that are computed again when requests resume. Mean over repeats.",
    [Panel("Preemptions", (PREEMPTIONS,)), Panel("Recomputed tokens", (RECOMPUTED,))],
    order=90,
)

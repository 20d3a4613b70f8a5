"""Preemptions and recomputed tokens of each experiment."""

from kvscope.report.figures.over_experiments import Panel, over_experiments

FIGURE = over_experiments(
    "Preemptions",
    "Preemptions, and tokens that are computed again when requests resume. Mean over repeats.",
    [Panel("Preemptions", ("preemptions",)), Panel("Recomputed tokens", ("recomputed_tokens",))],
    order=90,
)

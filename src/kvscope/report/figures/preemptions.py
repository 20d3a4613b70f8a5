"""How often each experiment preempts, and what it computes again."""

from kvscope.report.figures.over_experiments import Panel, over_experiments
from kvscope.report.words import PREEMPTIONS, RECOMPUTED

FIGURE = over_experiments(
    "preemptions",
    "Preemptions",
    "Preemptions, and tokens computed before and computed again when requests resume. Mean over "
    "repeats.",
    [Panel("Preemptions", (PREEMPTIONS,)), Panel("Recomputed tokens", (RECOMPUTED,))],
)

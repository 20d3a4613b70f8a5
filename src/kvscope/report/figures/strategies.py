"""Batching policies compared: throughput by phase, and the number of forward passes."""

from kvscope.plan.figures import Axes
from kvscope.report.data import StudyData
from kvscope.report.figures.over_experiments import Panel, over_experiments
from kvscope.report.words import DECODE, MIXED, PASSES, PREFILL, THROUGHPUT

BATCHING, CHUNK = "batching", "batching.chunk_tokens"


def strategy_key(study: StudyData) -> str | None:
    """The key by which the study's batching varies; None if it has one strategy."""
    rows = study.traits.values()
    return next((key for key in (BATCHING, CHUNK) if len({row.get(key) for row in rows}) > 1), None)


def varies(study: StudyData) -> bool:
    """Whether there are batching strategies to compare."""
    return strategy_key(study) is not None


FIGURE = over_experiments(
    "Batching strategies",
    "Throughput of the whole repeat, of its prefill, decode and mixed forward passes, and the "
    "number of passes.",
    [
        Panel("Throughput", (THROUGHPUT,)),
        Panel("Prefill throughput", (PREFILL,)),
        Panel("Decode throughput", (DECODE,)),
        Panel("Throughput of mixed passes", (MIXED,)),
        Panel("Forward passes", (PASSES,)),
    ],
    own_axes=lambda study: Axes(x=strategy_key(study)),
    suits=varies,
    order=30,
)

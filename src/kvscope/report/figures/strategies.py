"""Batching policies compared: throughput by phase, and the number of forward passes."""

from kvscope.plan.figures import Axes
from kvscope.report.data import StudyData
from kvscope.report.figures.over_experiments import Panel, over_experiments
from kvscope.report.words import DECODE, MIXED, PASSES, PREFILL, THROUGHPUT

BATCHING, CHUNK = "batching", "batching.chunk_tokens"


def strategy_key(study: StudyData) -> str | None:
    """The key by which the study's batching varies; None if it has one strategy."""
    keys = {key for row in study.traits.values() for key in row}
    return next((key for key in (BATCHING, CHUNK) if key in keys), None)


def varies(study: StudyData) -> bool:
    """Whether there are batching strategies to compare."""
    return strategy_key(study) is not None


FIGURE = over_experiments(
    "strategies",
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
    axes=Axes(x=BATCHING),
    suits=varies,
)

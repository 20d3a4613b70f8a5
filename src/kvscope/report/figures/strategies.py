"""Batching policies compared: throughput by phase, and the number of forward passes."""

from kvscope.plan.figures import Axes
from kvscope.report.data import StudyData
from kvscope.report.figures.over_experiments import Panel, over_experiments

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
        Panel("Throughput", ("throughput_tokens_per_s",)),
        Panel("Prefill throughput", ("prefill_throughput_tokens_per_s",)),
        Panel("Decode throughput", ("decode_throughput_tokens_per_s",)),
        Panel("Throughput of mixed passes", ("mixed_throughput_tokens_per_s",)),
        Panel("Forward passes", ("forward_passes",)),
    ],
    own_axes=lambda study: Axes(x=strategy_key(study)),
    suits=varies,
    order=30,
)

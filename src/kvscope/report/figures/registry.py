"""All figures, in the order of the page."""

from collections.abc import Iterable

from kvscope.plan import figures as names
from kvscope.report.data import StudyData
from kvscope.report.figures import (
    access_gaps,
    access_metrics,
    access_pattern,
    batch_composition,
    kv_timeline,
    latency,
    preemptions,
    resume_overhead,
    strategies,
    swapping,
    throughput,
    utilization,
    window_fill,
)
from kvscope.report.figures.figure import StudyFigure

FIGURES: dict[str, StudyFigure] = {
    module.FIGURE.name: module.FIGURE
    for module in (
        throughput,
        strategies,
        window_fill,
        latency,
        utilization,
        preemptions,
        resume_overhead,
        swapping,
        kv_timeline,
        batch_composition,
        access_pattern,
        access_gaps,
        access_metrics,
    )
}


def figures_of(study: StudyData) -> list[StudyFigure]:
    """The figures that the study has data for."""
    return [figure for figure in FIGURES.values() if figure.available(study)]


def lacking(study: StudyData, figures: Iterable[StudyFigure]) -> list[str]:
    """Why figures that the study asks for are not among these, a sentence each."""
    drawn = {figure.name for figure in figures}
    return [
        f"Figure '{name}' is not drawn: no experiment has the data it needs."
        if name in names.FIGURES
        else f"Figure '{name}' is not drawn: there are only {', '.join(names.FIGURES)}."
        for name in study.figures
        if name not in drawn
    ]

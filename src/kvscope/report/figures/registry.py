"""All figures, in the order of the page."""

from kvscope.errors import BadInput
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
    """The figures that the study has data for.

    BadInput if the study asks for a figure that does not exist, or that it has no data for
    although all its experiments are complete.
    """
    unknown = [name for name in study.figures if name not in FIGURES]
    if unknown:
        raise BadInput(
            f"study {study.name}: figures has '{unknown[0]}' but must be of {', '.join(FIGURES)}"
        )
    found = [figure for figure in FIGURES.values() if figure.available(study)]
    lacking = {*study.figures} - {figure.name for figure in found}
    if lacking and len(study.complete) == len(study.runs):
        raise BadInput(f"study {study.name}: it has no data for figure '{min(lacking)}'")
    return found

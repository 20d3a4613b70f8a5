"""All figures, in the order of the page."""

from collections.abc import Mapping
from dataclasses import replace

from kvscope.plan import figures as names
from kvscope.report.data import StudyData
from kvscope.report.figures import (
    access_gaps,
    access_metrics,
    access_pattern,
    batch_composition,
    goodput,
    kv_accesses,
    kv_timeline,
    latency,
    latency_distributions,
    offload_pipeline,
    offload_published,
    offload_shares,
    pareto,
    predictions,
    preemptions,
    resume_overhead,
    resume_time,
    step_timeline,
    strategies,
    swapping,
    throughput,
    utilization,
    window_fill,
)
from kvscope.report.figures.figure import Drawing, Figure

MODELED = "modeled, not measured"

FIGURES: dict[str, Figure] = {
    module.FIGURE.name: module.FIGURE
    for module in (
        throughput,
        pareto,
        strategies,
        window_fill,
        latency,
        latency_distributions,
        goodput,
        utilization,
        preemptions,
        resume_overhead,
        resume_time,
        swapping,
        offload_published,
        offload_shares,
        kv_timeline,
        batch_composition,
        access_pattern,
        access_gaps,
        access_metrics,
        predictions,
        step_timeline,
        offload_pipeline,
        kv_accesses,
    )
}


def drawings(study: StudyData) -> dict[str, Drawing]:
    """The figures that the study has data for, by name."""
    found = {name: figure.draw(study) for name, figure in FIGURES.items()}
    marks = (MODELED,) if study.modeled else ()
    return {
        name: replace(drawing, remarks=(*marks, *drawing.remarks))
        for name, drawing in found.items()
        if drawing
    }


def missing_figures(study: StudyData, drawn: Mapping[str, Drawing]) -> list[str]:
    """Why figures that the study requests are not drawn, a sentence each."""
    return [
        f"Figure '{asked.name}' is not drawn: no experiment has the data it needs."
        if asked.name in names.FIGURES
        else f"Figure '{asked.name}' is not drawn: there are only {', '.join(names.FIGURES)}."
        for asked in study.figures
        if asked.name not in drawn
    ]

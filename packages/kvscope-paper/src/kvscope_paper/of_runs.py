"""Figures of single experiments, in the paper's place for them."""

from collections.abc import Callable
from dataclasses import replace

from kvscope.api.figures import charts, draw_figure
from kvscope.api.sections import StudyData
from kvscope.api.wording import traits
from kvscope_paper import accesses_by_block
from kvscope_paper.layouts import OfRuns
from kvscope_paper.use_over_time import draw_use, draw_use_and_throughput

# Of the experiments and the name of a published series; None where there is nothing to draw.
OWN: dict[str, Callable[[StudyData, str], charts.Drawing | None]] = {
    **accesses_by_block.DRAW,
    "use": draw_use,
    "use_and_throughput": draw_use_and_throughput,
}


def draw_runs(asked: OfRuns, study: StudyData) -> charts.Drawing | None:
    """The drawing of the experiments that a figure of the paper is about; None without any."""
    runs = tuple(run for run in study.complete if asked.fits(run.settings))
    if draw := OWN.get(asked.figure):
        return draw(study.part(runs), asked.published)
    if not runs:
        return None
    apart = traits.names(traits.traits(traits.varied_settings([run.settings for run in runs])))
    shown = tuple(
        replace(run, label=words or run.label) for run, words in zip(runs, apart, strict=True)
    )
    drawing = draw_figure(study.part(shown), asked.figure)
    return drawing and replace(drawing, views=drawing.views[:1])

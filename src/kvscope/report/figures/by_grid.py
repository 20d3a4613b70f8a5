"""Figures of many experiments: a view for each grid of the study."""

from collections.abc import Sequence
from dataclasses import replace

from kvscope.plan.figures import Axes
from kvscope.report.data import StudyData
from kvscope.report.figures.figure import Draw, Drawing

MOST_TOGETHER = 64  # experiments in a figure whose axes the study does not declare


def by_grid(draw: Draw) -> Draw:
    """`draw` of the study where that is readable, else of each of its grids, in a view each.

    Axes that the study declares for the figure are taken as they are, for all experiments.
    """

    def draw_study(study: StudyData, axes: Sequence[Axes]) -> Drawing | None:
        grids = list(dict.fromkeys(run.grid for run in study.complete))
        if axes or len(grids) < 2 or len(study.complete) <= MOST_TOGETHER:
            return draw(study, axes)
        by_name = {grid: drawing for grid in grids if (drawing := draw(_of_grid(study, grid), ()))}
        return _joined(by_name) if by_name else None

    return draw_study


def _of_grid(study: StudyData, grid: str) -> StudyData:
    """The experiments of one grid; axes that the study declares for other figures suit others."""
    return study.part([run for run in study.runs if run.grid == grid])


def _joined(drawings: dict[str, Drawing]) -> Drawing:
    """One drawing with the views of all, chosen by grid first."""
    first = next(iter(drawings.values()))
    views = [
        replace(view, choice=(grid, *view.choice), remarks=(f"Grid: {grid}", *view.remarks))
        for grid, drawing in drawings.items()
        for view in drawing.views
    ]
    remarks = dict.fromkeys(remark for drawing in drawings.values() for remark in drawing.remarks)
    label_px = max(drawing.label_px for drawing in drawings.values())
    return Drawing(tuple(views), ("Grid", *first.headings), label_px, tuple(remarks))

"""Small multiples: the same axes for each of the first experiments of a study."""

from collections.abc import Callable
from textwrap import fill

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvscope.report import style
from kvscope.report.data import Run, StudyData
from kvscope.report.thin import thin, with_idle

# More do not fit on a page of paper; the report's timelines show them all.
MOST = 8
COLUMNS = 2
MOST_PASSES = 4000
LETTERS = 58  # of a title, beside another one


def recorded(study: StudyData) -> list[Run]:
    """The complete experiments that have a repeat to show."""
    return [run for run in study.complete if run.has_passes]


def small_multiples(
    study: StudyData, draw_one: Callable[[Axes, Run], None], y_label: str
) -> Figure:
    """A figure with one axes an experiment, time since the repeat's start along x."""
    runs = recorded(study)[:MOST]
    columns = min(COLUMNS, len(runs))
    rows = -(-len(runs) // columns)
    height = 1.55 if len(runs) > 1 else 2.6
    figure, axes = style.grid_of(rows, columns, height, shared="all")
    for number, cell in enumerate(axes):
        if number >= len(runs):
            cell.set_visible(False)
            continue
        draw_one(cell, runs[number])
        cell.set_title(fill(runs[number].label, LETTERS))
        if number % columns == 0:
            cell.set_ylabel(y_label)
        if number + columns >= len(runs):
            cell.set_xlabel("time since the start of the repeat (s)")
            cell.xaxis.set_tick_params(labelbottom=True)
    axes[0].set_xlim(left=0)
    style.legend_below(figure, axes)
    return figure


def passes_of(run: Run) -> pd.DataFrame:
    """The passes of the run's first repeat, as a figure draws them."""
    return with_idle(thin(run.steps(run.repeats[0]), MOST_PASSES))

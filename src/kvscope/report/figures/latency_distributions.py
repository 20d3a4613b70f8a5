"""Distributions of latencies over the requests of an experiment."""

from collections.abc import Callable, Sequence

import pandas as pd

from kvscope.plan.figures import Axes
from kvscope.report.data import ReportedRun, StudyData
from kvscope.report.figures.by_grid import by_grid
from kvscope.report.figures.distribution import distribution
from kvscope.report.figures.figure import (
    FIRST_AXES,
    Drawing,
    Figure,
)
from kvscope.report.figures.lines import COLUMNS, Lines, lines_drawing, request_plots
from kvscope.report.latencies import Latencies

SHARE = "share of requests at or below (%)"
MEASURES: dict[str, Callable[[Latencies], pd.Series]] = {
    "time to first token (s)": lambda found: found.ttft_s,
    "time per output token (ms)": lambda found: 1e3 * found.tpot_s.dropna(),
    "time from arrival to last token (s)": lambda found: found.latency_s,
}


def draw(study: StudyData, axes: Sequence[Axes]) -> Drawing | None:
    """The distributions of all experiments for each measure, a line an experiment."""
    shown, remarks = request_plots(study, axes)
    plots = [
        Lines(table, measure, SHARE, plot)
        for plot, runs in shown.items()
        for measure, latency in MEASURES.items()
        if not (table := _table(runs, latency)).empty
    ]
    return lines_drawing(plots, {}, columns=COLUMNS, remarks=remarks) if plots else None


def _table(
    runs: list[tuple[str, ReportedRun]], of: Callable[[Latencies], pd.Series]
) -> pd.DataFrame:
    named = [(name, distribution(of(run.latencies).to_numpy(float))) for name, run in runs]
    frames = [curve.frame().assign(line=name) for name, curve in named if curve is not None]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


FIGURE = Figure(
    "Latency distributions",
    "Share of the served requests, of all repeats, whose latency is at or below a bound.",
    by_grid(draw),
    order=60,
    axes=FIRST_AXES,
)

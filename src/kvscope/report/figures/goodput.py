"""Goodput: requests a second served within bounds on their latency."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from kvscope.plan.figures import Axes
from kvscope.report.data import ReportedRun, StudyData
from kvscope.report.figures.by_grid import by_grid
from kvscope.report.figures.distribution import POINTS
from kvscope.report.figures.figure import (
    FIRST_AXES,
    Drawing,
    Figure,
)
from kvscope.report.figures.lines import COLUMNS, Lines, lines_drawing, request_plots
from kvscope.report.words import number_text

BOUND, GOODPUT = "time to first token at most (s)", "goodput (requests/s)"
PERCENTILES = (25, 75)  # of TPOT over all requests: the bounds are the next round numbers


def draw(study: StudyData, axes: Sequence[Axes]) -> Drawing | None:
    """Goodput over the bound on TTFT: for any TPOT, and for two bounds on it."""
    plots, remarks = request_plots(study, axes)
    bounds_s = (math.inf, *_bounds_s([run for named in plots.values() for _, run in named]))
    lines = [
        Lines(_table(named, tpot_s), BOUND, GOODPUT, plot, _words(tpot_s))
        for plot, named in plots.items()
        for tpot_s in bounds_s
    ]
    return lines_drawing(lines, {}, columns=COLUMNS, remarks=remarks) if lines else None


def _words(tpot_s: float) -> str:
    if math.isinf(tpot_s):
        return "any time per output token"
    return f"time per output token at most {number_text(1e3 * tpot_s, 1)} ms"


def _bounds_s(runs: list[ReportedRun]) -> list[float]:
    """Round bounds on TPOT that some of the requests keep, the largest first."""
    tpots_s = [values for run in runs if len(values := run.latencies.tpot_s.dropna())]
    if not tpots_s:
        return []
    tpot_s = pd.concat(tpots_s)
    bounds = (_round_up(float(np.percentile(tpot_s, q))) for q in reversed(PERCENTILES))
    return list(dict.fromkeys(bounds))


def _round_up(value: float) -> float:
    """The next of …, 0.1, 0.2, 0.5, 1, 2, 5, …"""
    decade = 10 ** math.floor(math.log10(value)) if value > 0 else 1.0
    return next(step * decade for step in (1, 2, 5, 10) if step * decade >= value * (1 - 1e-9))


def goodput(run: ReportedRun, tpot_s: float, end_s: float) -> pd.DataFrame:
    """Requests a second (`y`) with TTFT of at most `x` seconds and TPOT of at most `tpot_s`.

    For x from 0 to `end_s`. Over all repeats: requests over the sum of the makespans. A request
    with one output token has no TPOT, and keeps any bound on it.
    """
    latencies = run.latencies
    ttft_s = np.sort(latencies.ttft_s[~(latencies.tpot_s > tpot_s)].to_numpy(float))
    places = np.unique(np.linspace(0, len(ttft_s) - 1, min(POINTS, len(ttft_s))).astype(np.int64))
    x = np.array([0.0, *ttft_s[places], end_s])
    y = np.array([0, *(places + 1), len(ttft_s)]) / latencies.makespan_s
    return pd.DataFrame({"x": x.round(6), "y": y.round(6)})


def _table(named: list[tuple[str, ReportedRun]], tpot_s: float) -> pd.DataFrame:
    end_s = max(float(run.latencies.ttft_s.max()) for _, run in named)
    return pd.concat(
        [goodput(run, tpot_s, end_s).assign(line=name) for name, run in named], ignore_index=True
    )


FIGURE = Figure(
    "Goodput under a latency objective",
    "Served requests per second whose time to first token is at most the bound along the axis, and "
    "whose time per output token is at most the bound above the plot. Requests of all repeats over "
    "the sum of the makespans; aborted requests do not count.",
    by_grid(draw),
    order=70,
    axes=FIRST_AXES,
)

"""Forward passes as a calibrated cost model predicts them, against measured passes."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from kvscope.api.figures import Axes, charts, theme
from kvscope.api.sections import StudyData, section
from kvscope.api.tables import passes as phases
from kvscope.api.wording import wording
from kvscope_model.calibration.prediction import MOST_POINTS
from kvscope_model.report.predictions import Predictions, read_predictions

HEIGHT, LABEL_PX = 300, 64
MOST = 0.95  # of the passes are between the dashed lines
TIMES = ("measured", "predicted")
HUES = {phases.PREFILL: theme.PREFILL, phases.DECODE: theme.DECODE, phases.MIXED: theme.RUNNING}


def draw(study: StudyData, axes: Sequence[Axes]) -> charts.Drawing | None:
    """Plot of passes, one point each; fitted runs have a plot of their own."""
    points = pd.DataFrame(_points(read_predictions(study)))
    if points.empty:
        return None
    times = points[["measured_ms", "predicted_ms"]]
    ends = [times.min().min(), times.max().max()]
    data: dict[str, pd.DataFrame] = {}
    names = [phase for phase in phases.PASS_PHASES if (points["phase"] == phase).any()]
    plots = dict(iter(points.groupby("title", sort=False)))
    width = charts.plot_width(min(2, len(plots)), LABEL_PX)
    cells: list[charts.Spec] = []
    for title, passes in plots.items():
        name, lines = f"cell{len(cells)}", f"lines{len(cells)}"
        data |= {name: passes, lines: _lines(passes, ends)}
        cells.append(_cell(name, lines, str(title), names, width))
    return charts.Drawing((charts.View(charts.grid(cells, 2, "phase"), data),), label_px=LABEL_PX)


def _points(predictions: Predictions) -> Iterator[dict[str, Any]]:
    for run, prediction in predictions.of_runs:
        title = f"Runs that the model was {'' if prediction.fitted else 'not '}fitted to"
        for phase, passes in prediction.phases.items():
            for measured_s, predicted_s in passes.points:
                yield {
                    "title": title,
                    "experiment": run.label,
                    "phase": phase,
                    "measured_ms": 1e3 * measured_s,
                    "predicted_ms": 1e3 * predicted_s,
                }


def _lines(points: pd.DataFrame, ends: list[float]) -> pd.DataFrame:
    """Equality from one end to the other, and the ratios between which MOST of the points are."""
    ratios = points["predicted_ms"] / points["measured_ms"]
    low, high = (ratios.quantile((1 + sign * MOST) / 2) for sign in (-1, 1))
    equal = pd.DataFrame({"at": ends})
    return equal.assign(low=equal["at"] * low, high=equal["at"] * high)


def _cell(data: str, lines: str, title: str, names: list[str], width: int) -> charts.Spec:
    tooltip = [charts.text("experiment"), charts.text("phase")]
    tooltip += [charts.number(f"{name}_ms", title=f"{name} (ms)", format=",.4~g") for name in TIMES]
    look: charts.Spec = {
        "color": charts.text("phase", scale=charts.colours(names, [HUES[name] for name in names])),
        "opacity": charts.PICKED,
        "tooltip": tooltip,
    }
    return {
        **charts.heading(title),
        "width": width,
        "height": HEIGHT,
        "layer": [
            {
                "data": {"name": data},
                "mark": {"type": "point", "filled": True, "size": 24, "opacity": 0.6},
                "encoding": _at("measured_ms", "predicted_ms") | look,
            },
            _line(lines, "at", {}),
            _line(lines, "low", {"strokeDash": [4, 4]}),
            _line(lines, "high", {"strokeDash": [4, 4]}),
        ],
    }


def _line(data: str, column: str, look: charts.Spec) -> charts.Spec:
    return {
        "data": {"name": data},
        "mark": {"type": "line", "strokeWidth": 1, "color": theme.GREY, **look},
        "encoding": _at("at", column),
    }


def _at(measured: str, predicted: str) -> charts.Spec:
    """Both axes; layers share them, so all have the same titles."""
    look: charts.Spec = {
        "scale": {"type": "log", "nice": False, "padding": 8},
        "axis": {"format": charts.NUMBER},
    }
    return {
        "x": charts.number(measured, title="measured (ms)", **look),
        "y": charts.number(predicted, title="predicted (ms)", **look),
    }


FIGURE = charts.Figure(
    "Predicted by the calibrated cost model",
    f"Forward passes of measured runs: at most {MOST_POINTS} of each phase of an experiment, "
    "spread over the run. Solid: predicted equals measured. Between the dashed lines are "
    f"{wording.percent(MOST)} of a plot's points.",
    draw,
    order=200,
    faults=lambda study: read_predictions(study).faults,
)


def _context(report: section.Report) -> Mapping[str, Any]:
    return {"predictions": read_predictions(report.study)}


SECTION = section.Section(
    FIGURE.title,
    Path(__file__).with_name("predictions.html.j2"),
    _context,
    order=500,
    figure="predictions",
)

"""Small multiples over time: the forward passes of the first repeat of each experiment."""

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from kvscope.quantities import plural
from kvscope.report.data import ReportedRun, StudyData
from kvscope.report.figures.figure import Drawing, Spec, View, number, plot_width, text
from kvscope.report.thin import merged_passes, passes, thin

MOST = 12  # experiments; the step timelines show them all
MOST_PASSES = 300  # of a repeat: as many as a plot on paper has pixels
COLUMNS = 2
LABEL_PX = 56
TIME = "time since the start of the repeat (s)"
STEPS: dict[str, Any] = {"interpolate": "step-after", "clip": True}


def runs_with_passes(study: StudyData) -> list[ReportedRun]:
    """The complete experiments that have a repeat to show."""
    return [run for run in study.complete if run.has_passes]


def multiples(
    study: StudyData,
    columns_of: Callable[[ReportedRun, pd.DataFrame], dict[str, Any]],
    layers: Sequence[Spec],
    more: Callable[[ReportedRun], pd.DataFrame] | None = None,
) -> Drawing | None:
    """The layers over time, a facet an experiment; None without experiments.

    `columns_of` gives what is drawn of the passes, with those of `thin.passes`; `more` gives
    further rows, with their `start_s`.
    """
    runs = runs_with_passes(study)[:MOST]
    if not runs:
        return None
    frames = []
    for run in runs:
        steps = passes(thin(run.steps(run.repeats[0]), MOST_PASSES))
        own = pd.DataFrame({"start_s": steps["start_s"].round(5), **columns_of(run, steps)})
        parts = [own, more(run)] if more else [own]
        frames += [part.assign(experiment=run.label) for part in parts if not part.empty]
    columns = min(COLUMNS, len(runs))
    chart = {
        "data": {"name": "passes"},
        "facet": text("experiment", sort=[run.label for run in runs], title=None),
        "columns": columns,
        "spec": {
            "width": plot_width(columns, LABEL_PX),
            "height": 110 if columns > 1 else 200,
            "encoding": {
                "x": number("start_s", title=TIME, scale={"nice": False}, axis={"tickCount": 6})
            },
            "layer": list(layers),
        },
        "resolve": {"axis": {"x": "independent"}},
    }
    count = len(runs_with_passes(study))
    notes = [f"The first {MOST} of {plural(count, 'experiment')}."] if count > MOST else []
    most = max(len(run.steps(run.repeats[0])) for run in runs)
    if (merged := merged_passes(most, MOST_PASSES)) > 1:
        notes.append(f"Up to {merged} consecutive passes are drawn as one.")
    view = View(chart, {"passes": pd.concat(frames, ignore_index=True)}, note=" ".join(notes))
    return Drawing((view,), label_px=LABEL_PX)

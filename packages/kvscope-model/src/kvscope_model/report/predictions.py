"""Predictions of a calibrated cost model for a study's measured runs, as the page shows them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

from kvscope.api.errors import BadInput
from kvscope.api.sections import ReportedRun, StudyData
from kvscope.api.tables import passes
from kvscope.api.wording import wording
from kvscope.api.words import quantities, time_sources
from kvscope_model.calibration.prediction import FittedModel, Prediction, read_prediction

SAME_SPEED = 1.15  # the median error of a pass that a calibration is to reach, as a factor


@dataclass(frozen=True)
class Predictions:
    """The runs of a study that have a prediction, and why others' predictions are not shown."""

    of_runs: tuple[tuple[ReportedRun, Prediction], ...]
    faults: tuple[str, ...]

    @cached_property
    def models(self) -> list[FittedModel]:
        """The fitted models, each once."""
        models: list[FittedModel] = []
        for _, prediction in self.of_runs:
            if prediction.model not in models:
                models.append(prediction.model)
        return models

    @property
    def phases(self) -> list[str]:
        """The phases of the runs' passes."""
        present = {phase for _, prediction in self.of_runs for phase in prediction.phases}
        return [phase for phase in passes.PASS_PHASES if phase in present]

    @property
    def sentences(self) -> Iterator[str]:
        """Sentences on the prediction of fitted runs and of others."""
        fitted = [prediction for _, prediction in self.of_runs if prediction.fitted]
        others = [prediction for _, prediction in self.of_runs if not prediction.fitted]
        if others:
            yield f"{_range(others)} The model was not fitted to these runs."
        if fitted:
            yield f"{_range(fitted)} The model was fitted to these runs."
        speeds = [prediction.speed for prediction in others if prediction.speed]
        if apart := [speed for speed in speeds if max(speed, 1 / speed) > SAME_SPEED]:
            count = quantities.plural(len(speeds), "experiment")
            yield (
                f"Around {len(apart)} of {count} that the model was not fitted to, the machine did "
                f"its reference work {_times(apart)} times as fast as around those that it was "
                "fitted to (work_s in run.json); a prediction cannot know that."
            )

    @property
    def rows(self) -> Iterator[dict[str, Any]]:
        """A row of the table for each run."""
        for run, prediction in self.of_runs:
            yield {
                "label": run.label,
                "fitted": prediction.fitted,
                "cells": (
                    f"{prediction.passes:,}",
                    wording.number_text(prediction.measured_s),
                    wording.number_text(prediction.predicted_s),
                    f"{prediction.ratio:.3f}",
                    wording.percent(prediction.median_error),
                ),
                "phases": [_phase(prediction, phase) for phase in self.phases],
            }


def read_predictions(study: StudyData) -> Predictions:
    """The predictions of a study's complete runs; damaged and stale ones become faults."""
    readable, faults = [], []
    for run in study.complete:
        try:
            if prediction := read_prediction(run.directory):
                if run.rehearsed:
                    raise BadInput(f"the run is {time_sources.NOT_MEASURED}")
                readable.append((run, prediction))
        except BadInput as error:
            faults.append(f"The prediction of {run.label} is not shown: {error}.")
    return Predictions(tuple(readable), tuple(faults))


def _range(predictions: Sequence[Prediction]) -> str:
    """The median errors of some runs in a sentence."""
    errors = [prediction.median_error for prediction in predictions]
    runs = quantities.plural(len(errors), "experiment")
    if len(errors) == 1:
        return f"In {runs} the median error of a forward pass is {wording.percent(errors[0])}."
    low, high = wording.percent(min(errors)), wording.percent(max(errors))
    return (
        f"In {runs} the median error of a forward pass is {low} to {high}, "
        f"{wording.percent(median(errors))} in the median experiment."
    )


def _times(factors: Sequence[float]) -> str:
    """The range of some factors."""
    low, high = f"{min(factors):.2f}", f"{max(factors):.2f}"
    return low if low == high else f"{low} to {high}"


def _phase(prediction: Prediction, phase: str) -> dict[str, str]:
    """The error of a phase's passes, and that by a fit without the run, as texts."""
    errors = prediction.phases.get(phase)
    if errors is None:
        return {"error": "", "left_out": ""}
    left_out = "" if errors.left_out is None else f"left out: {wording.percent(errors.left_out)}"
    return {"error": wording.percent(errors.median_error), "left_out": left_out}

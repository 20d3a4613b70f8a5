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


@dataclass(frozen=True)
class Predictions:
    """The runs of a study that have a prediction, and why others' predictions are not shown."""

    of_runs: tuple[tuple[ReportedRun, Prediction], ...]
    faults: tuple[str, ...]

    @cached_property
    def models(self) -> list[FittedModel]:
        """The fitted models, each once."""
        found: list[FittedModel] = []
        for _, prediction in self.of_runs:
            if prediction.model not in found:
                found.append(prediction.model)
        return found

    @property
    def phases(self) -> list[str]:
        """The phases of the runs' passes."""
        found = {phase for _, one in self.of_runs for phase in one.phases}
        return [phase for phase in passes.PASS_PHASES if phase in found]

    @property
    def sentences(self) -> Iterator[str]:
        """How well runs are predicted that the model was not fitted to, and those that it was."""
        fitted = [one for _, one in self.of_runs if one.fitted]
        others = [one for _, one in self.of_runs if not one.fitted]
        if others:
            yield f"{_range(others)} The model was not fitted to these runs."
        if fitted:
            yield f"{_range(fitted)} The model was fitted to these runs."

    @property
    def rows(self) -> Iterator[dict[str, Any]]:
        """A row of the table for each run."""
        for run, one in self.of_runs:
            yield {
                "label": run.label,
                "fitted": one.fitted,
                "cells": (
                    f"{one.passes:,}",
                    wording.number_text(one.measured_s),
                    wording.number_text(one.predicted_s),
                    f"{one.ratio:.3f}",
                    wording.percent(one.median_error),
                ),
                "phases": [_phase(one, phase) for phase in self.phases],
            }


def read_predictions(study: StudyData) -> Predictions:
    """The predictions of a study's complete runs; damaged and stale ones become faults."""
    found, faults = [], []
    for run in study.complete:
        try:
            if prediction := read_prediction(run.directory):
                if run.rehearsed:
                    raise BadInput(f"the run is {time_sources.NOT_MEASURED}")
                found.append((run, prediction))
        except BadInput as error:
            faults.append(f"The prediction of {run.label} is not shown: {error}.")
    return Predictions(tuple(found), tuple(faults))


def _range(predictions: Sequence[Prediction]) -> str:
    """The median errors of some runs in a sentence."""
    errors = [one.median_error for one in predictions]
    runs = quantities.plural(len(errors), "experiment")
    if len(errors) == 1:
        return f"In {runs} the median error of a forward pass is {wording.percent(errors[0])}."
    low, high = wording.percent(min(errors)), wording.percent(max(errors))
    return (
        f"In {runs} the median error of a forward pass is {low} to {high}, "
        f"{wording.percent(median(errors))} in the median experiment."
    )


def _phase(prediction: Prediction, phase: str) -> dict[str, str]:
    """The error of a phase's passes, and that by a fit without the run, as texts."""
    found = prediction.phases.get(phase)
    if found is None:
        return {"error": "", "left_out": ""}
    left_out = "" if found.left_out is None else f"left out: {wording.percent(found.left_out)}"
    return {"error": wording.percent(found.median_error), "left_out": left_out}

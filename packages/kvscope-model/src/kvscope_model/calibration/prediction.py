"""`prediction.json`: how well a fitted cost model predicts the forward passes of a measured run.

`kvscope calibrate` writes it beside the run's tables, the report reads it. It names the measurement
and those that the model was fitted to by the SHA-256 of their run.json.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from pydantic import Field, ValidationError

from kvscope.api.errors import BadInput
from kvscope.api.files import files, layout, reading
from kvscope.api.settings import runschema
from kvscope.api.tables import passes as phases
from kvscope.api.tables import runfile

FILE = "prediction.json"
VERSION = 1
MOST_POINTS = 40  # passes of each phase of a run whose times are kept for a chart

Seconds = Annotated[runschema.Real, Field(gt=0)]
Share = Annotated[runschema.Real, Field(ge=0)]
Name = Annotated[str, Field(pattern=r"^[^/]+$")]  # of a directory
Phase = Annotated[str, Field(pattern=f"^({'|'.join(phases.PASS_PHASES)})$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class FittedNumber(runschema.Record):
    """A fitted number, in the interval of 95 % of the fits to bootstrap samples."""

    value: runschema.Real
    low: runschema.Real
    high: runschema.Real


class FittedModel(runschema.Record):
    """The fitted numbers, and the runs that they are fitted to.

    `runs` has the names of the runs' directories by the SHA-256 of their run.json; `work_s` is what
    the reference work took around their repeats.
    """

    runs: Annotated[dict[Sha256, Name], Field(min_length=1)]
    work_s: Seconds | None = None
    constants: Annotated[dict[str, FittedNumber], Field(min_length=1)]
    samples: runschema.Whole


class PhaseErrors(runschema.Record):
    """Passes of one phase: their sums and the median error of a pass, as a share of its duration.

    `left_out` is the median error by a fit without this run; null for a run that the model was not
    fitted to, and where the other runs do not tell. `points` are measured and predicted seconds of
    some of the passes.
    """

    passes: Annotated[runschema.Whole, Field(gt=0)]
    measured_s: Seconds
    predicted_s: Seconds
    median_error: Share
    left_out: Share | None
    points: list[tuple[Seconds, Seconds]]


class Prediction(runschema.Record):
    """The passes of a run, of all valid repeats, beside those that the model predicts.

    `fitted`: the run is one of those that the model was fitted to. `work_s` is what the reference
    work took around its repeats.
    """

    schema_version: Annotated[Literal[1], Field(alias="schema")]
    run_sha256: Sha256
    fitted: bool
    passes: Annotated[runschema.Whole, Field(gt=0)]
    measured_s: Seconds
    predicted_s: Seconds
    median_error: Share
    phases: Annotated[dict[Phase, PhaseErrors], Field(min_length=1)]
    model: FittedModel
    work_s: Seconds | None = None

    @property
    def ratio(self) -> float:
        """Predicted over measured seconds of all passes."""
        return self.predicted_s / self.measured_s

    @property
    def speed(self) -> float | None:
        """Speed of the machine at the reference work, relative to that around the fitted runs."""
        return self.model.work_s / self.work_s if self.model.work_s and self.work_s else None


def write_prediction(
    run: Path, passes: pd.DataFrame, model: FittedModel, left_out: Mapping[str, float | None]
) -> Prediction:
    """Write prediction.json of a run.

    `passes` has `phase`, `measured_s` and `predicted_s` of each pass; `left_out` the median error
    of a phase by a fit without this run, if there is one.
    """
    sha256 = runfile.run_sha256(run)
    prediction = Prediction.model_validate(
        {
            "schema": VERSION,
            "run_sha256": sha256,
            "fitted": sha256 in model.runs,
            **_errors(passes),
            "phases": {
                phase: _errors(of_phase)
                | {"left_out": left_out.get(phase), "points": _points(of_phase)}
                for phase in phases.PASS_PHASES
                if len(of_phase := passes[passes["phase"] == phase])
            },
            "model": model,
            "work_s": reference_work_s([run]),
        }
    )
    files.write_json(layout.tables_directory(run) / FILE, prediction.model_dump(by_alias=True))
    return prediction


def reference_work_s(runs: Iterable[Path]) -> float | None:
    """Median of what the reference work took around the repeats of some runs; None if unknown."""
    repeats = (repeat for run in runs for repeat in runfile.read_record(run).disturbance)
    work_s = [repeat.work_s for repeat in repeats if repeat.work_s]
    return median(work_s) if work_s else None


def _errors(passes: pd.DataFrame) -> dict[str, Any]:
    off = (passes["predicted_s"] / passes["measured_s"] - 1).abs()
    return {
        "passes": len(passes),
        "measured_s": float(passes["measured_s"].sum()),
        "predicted_s": float(passes["predicted_s"].sum()),
        "median_error": float(off.median()),
    }


def _points(passes: pd.DataFrame) -> list[tuple[float, float]]:
    """Passes evenly spread over the run."""
    shown = np.linspace(0, len(passes) - 1, min(len(passes), MOST_POINTS)).astype(int)
    return [*passes.iloc[shown][["measured_s", "predicted_s"]].itertuples(index=False, name=None)]


def read_prediction(run: Path) -> Prediction | None:
    """Prediction of a run's passes; None if there is none.

    BadInput if the file is damaged; BadInput if the run, or one that the model was fitted to and
    that lies beside it, was measured again since.
    """
    path = layout.tables_directory(run) / FILE
    if not path.exists():
        return None
    remedy = "make it again with `kvscope calibrate`"
    try:
        prediction = Prediction.model_validate(files.read_json(path))
    except ValidationError as error:
        raise BadInput(f"{path}: {reading.damage(error)}; {remedy}") from None
    run_of_sha256 = {**prediction.model.runs, prediction.run_sha256: run.resolve().name}
    for name in dict.fromkeys(run_of_sha256.values()):
        measured = run.resolve().parent / name
        if (measured / runfile.RUN_FILE).is_file() and runfile.run_sha256(
            measured
        ) not in run_of_sha256:
            raise BadInput(
                f"{path} was made from another measurement than "
                f"{measured / runfile.RUN_FILE} holds now; {remedy}"
            )
    return prediction

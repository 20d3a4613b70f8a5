"""The forward passes of measured runs as a fitted cost model predicts them."""

from pathlib import Path

import numpy as np
import pandas as pd

from kvscope.api.errors import BadInput
from kvscope.api.experiments import Experiment
from kvscope.api.runs import RunView, planned, read_records
from kvscope_model.arraytypes import Floats
from kvscope_model.calibration.measured import require_measured
from kvscope_model.hardware.cost import PassCost
from kvscope_model.hardware.hardware import Hardware
from kvscope_model.hardware.overflow_cost import OverflowCost
from kvscope_model.runs.loads import loads_of
from kvscope_model.runs.moves import Moves


def predicted_passes(hardware: Hardware, directory: Path) -> pd.DataFrame:
    """`phase`, `measured_s` and `predicted_s` of every pass of the valid repeats of a run.

    BadInput if the run was not measured or has no passes.
    """
    records = read_records(directory)
    require_measured([directory])
    experiment = planned.experiment_of(records)
    frames = []
    for repeat in records.valid_repeats():
        steps = repeat.steps.sort_values("step")
        passes = steps[["phase"]].assign(measured_s=steps["duration_s"].astype(float))
        frames.append(passes.assign(predicted_s=predicted_s(hardware, experiment, repeat)))
    if not frames or frames[0].empty:
        raise BadInput(f"{directory}: has no forward passes to predict")
    return pd.concat(frames, ignore_index=True)


def predicted_s(hardware: Hardware, experiment: Experiment, repeat: RunView) -> Floats:
    """Seconds of each pass of a repeat, with all that is moved before and after it.

    What is saved to pageable memory, or by a CPU, ends with its pass.
    """
    cost = PassCost(hardware, experiment.model, split_decode=True)
    steps = repeat.steps.sort_values("step")
    seconds = cost.passes_s(loads_of(steps, repeat.batch))
    overflow = OverflowCost.of(experiment, cost)
    moved = Moves.assumed(repeat, overflow).seconds(overflow)
    pass_index = np.searchsorted(steps["step"], repeat.moves["step"])
    seconds += (
        np.bincount(pass_index, moved.copied_s + moved.rebuilt_s, len(steps)) + moved.gathered_s
    )
    in_pass = cost.is_cpu or overflow.memory == "pageable"
    return seconds + moved.saved_s if in_pass else seconds

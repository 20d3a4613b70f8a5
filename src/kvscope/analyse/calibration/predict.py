"""The forward passes of measured runs as a fitted cost model predicts them."""

from pathlib import Path

import numpy as np
import pandas as pd

from kvscope.analyse.calibration.measured import require_measured
from kvscope.analyse.records import Records, read_records
from kvscope.arraytypes import Floats
from kvscope.errors import BadInput
from kvscope.plan.experiment import Experiment, load
from kvscope.plan.hardware.cost import PassCost, copy_s
from kvscope.plan.hardware.hardware import Hardware
from kvscope.runfile import EXPERIMENT_FILE


def predicted_passes(hardware: Hardware, directory: Path) -> pd.DataFrame:
    """`phase`, `measured_s` and `predicted_s` of every pass of the valid repeats of a run.

    BadInput if the run was not measured or has no passes.
    """
    records = read_records(directory)
    require_measured(records, directory)
    experiment = load(directory / EXPERIMENT_FILE)
    frames = []
    for repeat in records.valid_repeats():
        steps = repeat.steps.sort_values("step")
        passes = steps[["phase"]].assign(measured_s=steps["duration_s"].astype(float))
        frames.append(passes.assign(predicted_s=predicted_s(hardware, experiment, repeat)))
    if not frames or frames[0].empty:
        raise BadInput(f"{directory}: has no forward passes to predict")
    return pd.concat(frames, ignore_index=True)


def predicted_s(hardware: Hardware, experiment: Experiment, repeat: Records) -> Floats:
    """Seconds of each pass of a repeat, its copies included."""
    cost = PassCost(hardware, experiment.model, split_decode=True)
    steps = np.sort(repeat.steps["step"].to_numpy())
    rows: dict[int, list[tuple[int, int]]] = {step: [] for step in steps.tolist()}
    columns = ("step", "scheduled_tokens", "context_tokens")
    for step, tokens, before in zip(*(repeat.batch[c].tolist() for c in columns), strict=True):
        rows[step].append((tokens, before))
    seconds = np.array([cost.rows_s(own) for own in rows.values()])
    pieces = experiment.cache.pieces(experiment.model.layers)
    memory = str(getattr(experiment.overflow, "host_memory", "pinned"))
    for row in repeat.preemptions.query("bytes > 0").to_dict("records"):
        blocks = int(row["bytes"]) // experiment.block_bytes
        direction = "out" if row["event"] == "preempt" else "in"
        piece_bytes = experiment.block_bytes / pieces
        copied_s, _ = copy_s(hardware, blocks * pieces, piece_bytes, memory, direction)
        seconds[np.searchsorted(steps, row["step"])] += copied_s
    return seconds

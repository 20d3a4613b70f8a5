"""How well fitted numbers predict the passes of measured runs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from kvscope.analyse.calibration.measured import require_measured
from kvscope.analyse.records import Records, read_records
from kvscope.arraytypes import Floats
from kvscope.plan.experiment import Experiment, load
from kvscope.plan.hardware.cost import PassCost, copy_s
from kvscope.plan.hardware.hardware import Hardware
from kvscope.runfile import EXPERIMENT_FILE


@dataclass(frozen=True)
class Prediction:
    """Of one run: the median error of its passes, and the error of their sum, which has a sign."""

    run: str
    passes: int
    median_error: float
    sum_error: float

    @property
    def line(self) -> str:
        """As text."""
        return f"{self.run:66} {self.passes:6,} {self.median_error:7.1%} {self.sum_error:+8.1%}"


HEADING = f"{'predicted':66} {'passes':>6} {'median':>7} {'sum':>8}"


def predictions(hardware: Hardware, directories: Sequence[Path]) -> Iterator[Prediction]:
    """The prediction of each measured run; BadInput names one that was not measured."""
    for directory in directories:
        records = read_records(directory)
        require_measured(records, directory)
        experiment = load(directory / EXPERIMENT_FILE)
        pairs = [
            (predicted_s(hardware, experiment, repeat), _measured_s(repeat))
            for repeat in records.valid_repeats()
        ]
        predicted, measured = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
        off = np.abs(predicted / measured - 1)
        whole = float(predicted.sum() / measured.sum() - 1)
        yield Prediction(directory.name, len(off), median(off.tolist()), whole)


def _measured_s(repeat: Records) -> Floats:
    seconds: Floats = repeat.steps.sort_values("step")["duration_s"].to_numpy(float)
    return seconds


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

"""Times of passes and copies in measured runs, for a fit to the device they ran on."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from kvscope.api.errors import BadInput
from kvscope.api.experiments import Experiment
from kvscope.api.runs import Records, RunView, planned, read_records, reasons_of
from kvscope.api.tables import copies
from kvscope.api.words import time_sources
from kvscope_model.calibration.fit import Observation, Parameter, Values
from kvscope_model.hardware.cost import PassCost, copy_s
from kvscope_model.hardware.hardware import Hardware

# Passes of a run, of each phase: they differ little, and a fit takes as long as they are many.
MOST_PASSES = 8
HARDWARE = "cpu"  # the data file whose other numbers hold

PARAMETERS = (
    Parameter("gemm_flops_per_s", 3e10, 1e9, 2e15),
    Parameter("weight_bytes_per_s", 1e10, 1e8, 1e13),
    Parameter("attention_flops_per_s", 1e10, 1e8, 2e15),
    Parameter("memory_bytes_per_s", 1e10, 1e8, 1e13),
    Parameter("layer_launch_s", 1e-4, 1e-7, 1e-2),
    Parameter("request_s", 1e-5, 1e-8, 1e-2),
    Parameter("between_passes_s", 1e-5, 1e-8, 1e-2),
)
COPIES = (
    Parameter("{}_copy_s", 2e-6, 1e-8, 1e-3),
    Parameter("{}_out_bytes_per_s", 5e9, 1e8, 1e12),
    Parameter("{}_in_bytes_per_s", 5e9, 1e8, 1e12),
)


def observations(directories: Iterable[Path]) -> list[Observation]:
    """Passes and copies of measured runs; each run's passes and copies are separate groups.

    BadInput names a directory whose run is not a measured one, or was made by another engine.
    """
    times: list[Observation] = []
    for directory in directories:
        records = read_records(directory)
        require_measured([directory])
        experiment = planned.experiment_of(records)
        name = directory.resolve().name
        times += [*_passes(records, experiment, name), *_gaps(records, name)]
        times += _copies(records, experiment, name)
    if not times:
        raise BadInput("calibrate: give at least one run's directory")
    return times


def require_one_attention(directories: Iterable[Path]) -> None:
    """Raise BadInput if runs were measured with different attention kernels."""
    used: dict[str, Path] = {}
    for directory in directories:
        experiment = planned.experiment_of(Records(directory))
        used.setdefault(experiment.engine.attention, directory)
    if len(used) > 1:
        (attention, first), (other_attention, second) = list(used.items())[:2]
        raise BadInput(
            f"calibrate: {first} has engine.attention={attention} and {second} has "
            f"{other_attention}, but a fit is of one; give runs of one, such as those of "
            f'study=calibration-cpu overrides="engine.attention=vllm cache.block_size=32"'
        )


def doubts(directories: Iterable[Path]) -> Iterator[str]:
    """A line for each run that is not valid: which it is, and the names of the reasons."""
    for directory in dict.fromkeys(directories):
        if reasons := reasons_of(read_records(directory)):
            names = ", ".join(dict.fromkeys(reason.name for reason in reasons))
            yield f"{directory} is not valid ({names}) and is used as it is"


def require_measured(directories: Iterable[Path]) -> None:
    """BadInput if a run's times were not measured."""
    for directory in directories:
        source = Records(directory).time_source
        if source == time_sources.REHEARSED:
            raise time_sources.rehearsal_refused(directory, "calibrate")
        if source != time_sources.MEASURED:
            raise BadInput(f"{directory}: a calibration needs measured times")


def parameters(observations: Sequence[Observation]) -> list[Parameter]:
    """Those that the observations can tell."""
    groups = {observation.group.split(":")[-1] for observation in observations}
    fitted = [p for p in PARAMETERS if p.name != "between_passes_s" or "gap" in groups]
    for memory in ("pinned", "pageable"):
        if memory in groups:
            fitted += [Parameter(p.name.format(memory), p.start, p.low, p.high) for p in COPIES]
    return fitted


def _passes(records: RunView, experiment: Experiment, name: str) -> list[Observation]:
    """Each pass with the median of its duration over the repeats, less its copies."""
    steps = records.steps[~records.steps["stalled"].astype(bool)]
    plain = steps[(steps["preempted_requests"] == 0) & (steps["resumed_requests"] == 0)]
    seconds = plain.groupby("step")["duration_s"].median()
    phases = plain.groupby("step")["phase"].first()
    chosen: list[Any] = []
    for phase in phases.unique():
        of_phase = phases.index[phases == phase]
        chosen += list(
            of_phase[np.linspace(0, len(of_phase) - 1, min(len(of_phase), MOST_PASSES)).astype(int)]
        )
    rows = records.batch[records.batch["repeat"] == records.batch["repeat"].min()]
    by_step = dict(iter(rows.groupby("step")))
    return [
        Observation(
            f"{name}:{phases[step]}",
            float(seconds[step]),
            partial(_pass_s, experiment, tuple(_pairs(by_step[step]))),
        )
        for step in dict.fromkeys(chosen)
        if step in by_step
    ]


def _pairs(rows: pd.DataFrame) -> Iterable[tuple[int, int]]:
    return zip(rows["scheduled_tokens"].tolist(), rows["context_tokens"].tolist(), strict=True)


def _pass_s(
    experiment: Experiment,
    rows: tuple[tuple[int, int], ...],
    hardware: Hardware,
    values: Values,
) -> float:
    return PassCost(hardware, experiment.model, split_decode=True).rows_s(rows)


def _gaps(records: RunView, name: str) -> list[Observation]:
    """The median time between two passes, where all requests are there."""
    steps = records.steps.sort_values(["repeat", "step"])
    ends = steps["start_s"] + steps["duration_s"]
    gap = (steps["start_s"] - ends.shift())[steps["step"] > 0]
    gap = gap[gap > 0]
    if gap.empty:
        return []
    predict = _between_passes_s
    return [Observation(f"{name}:gap", float(gap.median()), predict)]


def _between_passes_s(hardware: Hardware, values: Values) -> float:
    return hardware.between_passes_s


def _copies(records: RunView, experiment: Experiment, name: str) -> list[Observation]:
    memory = getattr(experiment.overflow, "host_memory", None)
    if memory is None or getattr(experiment.overflow, "copies", None) != "per_block":
        return []
    pieces = experiment.cache.pieces(experiment.model.layers_apart)
    times = []
    for direction in copies.DIRECTIONS:
        rows = records.transfers
        rows = rows[(rows["kind"] == copies.KV) & (rows["direction"] == direction)]
        for _, row in rows.head(MOST_PASSES).iterrows():
            blocks = int(row["bytes"]) // experiment.block_bytes
            predict = partial(
                _copy_s, blocks * pieces, experiment.block_bytes / pieces, str(memory), direction
            )
            times.append(Observation(f"{name}:{memory}", float(row["copy_s"]), predict))
    return times


def _copy_s(
    copies: int, piece: float, memory: str, direction: str, hardware: Hardware, values: Values
) -> float:
    return copy_s(hardware, copies, piece, memory, direction)[0]

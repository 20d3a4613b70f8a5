"""The expected walltime of a run, from a model of its plan, corrected by finished runs.

The model is the sum of the engine's start and each serving of the request list. A serving takes

    forward passes x (seconds of a pass + bytes of the weights / bandwidth)
    + floating-point operations / speed + tokens x seconds of a token

but, by a real clock, at least until its last request arrives. Decoding takes as many passes as the
longest output has tokens, or all output tokens divided by the number of requests that fit into the
cache, whichever is more; prefill adds prompt tokens / token budget. The constants are round numbers
(`Device.speed`), corrected by the median of measured / expected over finished runs.
"""

import platform
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from kvscope.base.errors import BadInput
from kvscope.base.time_sources import REHEARSED
from kvscope.plan.device import Speed
from kvscope.plan.repeats import StoppingRule
from kvscope.plan.work import Work, expected_work
from kvscope.tables import runfile

if TYPE_CHECKING:
    from kvscope.plan.experiment import Experiment


# The newest finished runs that are used for corrections.
MOST_RUNS = 200
MODELED_START_S = 1.0  # an engine without weights or KV cache, and the tables of its run
LONGEST_S = 10**9


def expected_s(experiment: "Experiment", repeats: float | None = None) -> float:
    """Seconds that the model expects for a run; BadInput if a workload's file cannot be used.

    `repeats` is the number of repeats; by default the stopping rule ends them (`_measuring_s`).
    """
    speed, model = experiment.device.speed, experiment.model
    start_s = speed.start_s + model.weight_bytes / speed.load_bytes_per_s
    if experiment.engine.attention == "instrumented":
        start_s += speed.compile_s
    serving_s = once_s(experiment)
    measuring_s = (
        _measuring_s(experiment.stopping, serving_s) if repeats is None else repeats * serving_s
    )
    return start_s + experiment.warmup * serving_s + measuring_s


def share_s(experiment: "Experiment") -> float:
    """Seconds of an experiment's part of a batch, whose imports all share.

    Its engine warms up for the rounds and for the profiled repeat. The fewest rounds are counted.
    A modeled engine is not warmed up for a profiled repeat.
    """
    if not experiment.device.allocates:
        return MODELED_START_S + (experiment.warmup + experiment.stopping.min) * once_s(experiment)
    return (2 * experiment.warmup + experiment.stopping.min + 1) * once_s(experiment)


def once_s(experiment: "Experiment") -> float:
    """Seconds of serving the request list once."""
    return _serving_s(experiment, expected_work(experiment), experiment.device.speed)


def expected_repeats(experiment: "Experiment") -> float:
    """Repeats that the model expects, by the stopping rule."""
    serving_s = once_s(experiment)
    return _measuring_s(experiment.stopping, serving_s) / serving_s


def _measuring_s(stopping: StoppingRule, serving_s: float) -> float:
    """Seconds of all repeats: the mean of the least and the most that the stopping rule allows.

    Twice this time suffices for the most. The repeat in which the budget ends is finished.
    """
    least_s = stopping.min * serving_s
    if stopping.budget_s is None:
        return least_s
    return (least_s + max(least_s, stopping.budget_s + serving_s)) / 2


def _serving_s(experiment: "Experiment", once: Work, speed: Speed) -> float:
    pass_s = speed.pass_s + experiment.model.weight_bytes / speed.bytes_per_s
    seconds = (
        _passes(experiment, once) * pass_s
        + _flops(experiment, once) / experiment.device.flops_per_s
        + once.tokens * speed.token_s
    )
    by_clock = experiment.device.by_clock  # a virtual clock jumps to an arrival
    return max(seconds, once.last_arrival_s) if by_clock else seconds


def _passes(experiment: "Experiment", once: Work) -> float:
    """Forward passes of one serving."""
    room = max(1.0, experiment.cache_tokens / once.mean_tokens)
    together = min(once.requests, experiment.engine.max_num_seqs, room)
    budget = experiment.batching.pass_tokens or experiment.engine.max_num_batched_tokens
    decode = max(once.longest_output, once.output_tokens / together)
    return decode + once.prompt_tokens / budget


def _flops(experiment: "Experiment", once: Work) -> float:
    """Floating-point operations: 2 · weights per token, 4 · width · layers per context token."""
    model = experiment.model
    weights = 2.0 * model.parameters * once.tokens
    return weights + 4.0 * model.hidden_size * model.layers * once.tokens * once.mean_tokens / 2


def walltimes_s(experiments: Iterable["Experiment"], results: Path) -> dict[str, dict[str, int]]:
    """Expected seconds of each experiment by id: alone, and of its share of a campaign.

    BadInput if a workload's file is unusable. The model's value is multiplied by measured /
    expected of the experiment's own finished run below `results`; else by the median of that ratio
    over this host's finished runs with the same device and model. Of a modeled run only the
    servings count.
    """
    planned = {experiment.id: experiment for experiment in experiments}
    ratios = {
        i: ratio
        for i, experiment in planned.items()
        if (ratio := _ratio(results / "experiments" / i, experiment))
    }
    corrections = _corrections(planned, results) if len(ratios) < len(planned) else {}
    factor = {
        i: ratios.get(i) or corrections.get(_machine(experiment), 1.0)
        for i, experiment in planned.items()
    }
    return {
        i: {
            "walltime_s": _whole(expected_s(experiment) * factor[i]),
            "share_s": _whole(share_s(experiment) * factor[i]),
        }
        for i, experiment in planned.items()
    }


def _whole(seconds: float) -> int:
    return max(1, round(min(seconds, LONGEST_S)))


def _corrections(planned: dict[str, "Experiment"], results: Path) -> dict[tuple[str, str], float]:
    """The median of measured / expected over this host's runs, by device and model."""
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    for directory in _newest(results):
        try:
            experiment = planned.get(directory.name) or _load(directory)
            if ratio := _ratio(directory, experiment, platform.node()):
                ratios[_machine(experiment)].append(ratio)
        except BadInput:
            continue  # of another version, or its trace is missing
    return {machine: median(values) for machine, values in ratios.items()}


def _machine(experiment: "Experiment") -> tuple[str, str]:
    return experiment.device.name, experiment.model.name


def _newest(results: Path) -> list[Path]:
    """Directories of the newest runs."""
    runs = list(results.glob(f"experiments/*/{runfile.RUN_FILE}"))
    runs.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    return [path.parent for path in runs[:MOST_RUNS]]


def _ratio(directory: Path, experiment: "Experiment", host: str | None = None) -> float | None:
    """Measured / expected seconds of a complete run; None without such a run (on `host`, if given).

    Expected is the model's value for as many repeats as were measured. Of a run that others were
    measured with, only its own servings count. A rehearsed run tells nothing of its device.
    """
    try:
        record = runfile.read_record(directory)
    except BadInput:
        return None
    if not record.complete or record.experiment_id != directory.name:
        return None
    if host is not None and record.hardware.hostname != host:
        return None
    if _is_rehearsed(directory, experiment):
        return None
    timings_s, repeats = record.timings_s, record.clock.repeats
    if not experiment.device.allocates:
        # With the start as expected: alone, a run imports vLLM, which a batch does once for all.
        served_s = sum(timings_s.get(part, 0.0) for part in ("warm_up", "repeats"))
        due_s = (experiment.warmup + len(repeats)) * once_s(experiment)
        return float((MODELED_START_S + served_s) / (MODELED_START_S + due_s))
    if record.campaign:
        served_s = timings_s.get("warm_up", 0.0) + sum(repeat.duration_s for repeat in repeats)
        return served_s / ((experiment.warmup + len(repeats)) * once_s(experiment)) or None
    total = timings_s.get("total")
    if not total:
        return None
    return total / expected_s(experiment, record.repeats.measured if record.repeats else None)


def _is_rehearsed(directory: Path, experiment: "Experiment") -> bool:
    if not experiment.device.rehearsed:
        return False
    from kvscope.tables.results import Run

    return Run(directory).time_source == REHEARSED


def _load(directory: Path) -> "Experiment":
    from kvscope.plan.experiment import load

    return load(directory / runfile.EXPERIMENT_FILE)

"""The oracles of devices that compute whole batches, and give the seconds of their passes."""

from functools import cache

import numpy as np

from kvscope.base.arraytypes import Floats
from kvscope.judge.differences import value_differences
from kvscope.judge.oracles.facts import device_class
from kvscope.judge.oracles.run_tables import NANOSECONDS, RunTables, combine
from kvscope.judge.oracles.virtual import TOLERANCE_S, differs, takes_no_scheduling, wrong_time
from kvscope.judge.planned import experiment_of
from kvscope.plan.device import Device
from kvscope.tables.oracle import NONE, Violations
from kvscope.tables.run_view import RunView


def predicts_batches(run: RunTables) -> bool:
    """Whether the run's device computes batches to their end, and knows the seconds of each."""
    name = run.section("device").get("name")
    return name is not None and device_class(name).passes_s is not Device.passes_s


def modeled_batch_wrong(run: RunTables) -> Violations:
    """The passes of a modeled batch are those that the device gives for its requests' lengths.

    A batch has the requests that have arrived when the previous batch has ended.
    """
    return combine(*(_batches_differ(run, repeat) for repeat in run.repeats.values()))


def modeled_facts_wrong(run: RunTables) -> Violations:
    """run.json has the values that the device gives for the first batch of the warm-up.

    These are the predictions of the device's cost model.
    """
    experiment, requests = experiment_of(run.records), run.records.workload
    first = requests["arrival_s"] <= requests["arrival_s"].min() + NANOSECONDS
    batch = requests[first & (experiment.warmup > 0)]
    lengths = [*zip(batch["prompt_tokens"], batch["output_tokens"], strict=True)]
    expected = experiment.device.engine_facts(experiment, lengths)
    facts = {key: run.engine.stated(key) for key in expected}
    wrong = [*value_differences("engine.", facts, expected)]
    return Violations(len(wrong), wrong[0]) if wrong else NONE


def _batches_differ(run: RunTables, repeat: RunView) -> Violations:
    experiment = experiment_of(run.records)
    passes_s = cache(lambda lengths: experiment.device.passes_s(experiment, lengths))
    steps = run.steps[run.steps["repeat"] == repeat.repeat].reset_index(drop=True)
    waiting = repeat.requests.sort_values("arrival_s", kind="stable")
    starts_s: list[float] = []
    now_s = 0.0
    while len(waiting):
        now_s = max(now_s, waiting["arrival_s"].iloc[0])
        batch = waiting[waiting["arrival_s"] <= now_s + NANOSECONDS]
        lengths = zip(batch["prompt_tokens"], batch["output_tokens"], strict=True)
        for pass_s in passes_s(tuple(lengths)):
            starts_s.append(now_s)
            now_s += pass_s
        waiting = waiting.iloc[len(batch) :]
    if len(starts_s) != len(steps):
        words = f"{len(steps)} passes, its device gives {len(starts_s)}"
        return Violations(1, f"repeat {repeat.repeat}: {words}")
    due_s: Floats = np.array([*starts_s, now_s])
    tolerance_s = TOLERANCE_S * (1 + len(steps))  # each pass ends on a whole nanosecond
    wrong = differs(steps["start_s"], due_s[:-1], tolerance_s)
    took_s: Floats = due_s[1:] - due_s[:-1]
    wrong |= differs(steps["duration_s"], took_s, tolerance_s)
    served, begun_s = experiment.warmup + (repeat.repeat or 0), _begun_s(run, repeat)
    begin_s = served * now_s  # the clock began with the warm-up
    late = abs(begun_s - begin_s) > tolerance_s * (1 + served)
    words = f"repeat {repeat.repeat} begins at {begun_s:.9f} s, its device gives {begin_s:.9f}"
    return combine(
        wrong_time(steps, wrong, "duration_s", took_s),
        takes_no_scheduling(steps),
        Violations(1, words) if late else NONE,
    )


def _begun_s(run: RunTables, repeat: RunView) -> float:
    """When a repeat begins, by the clock of run.json."""
    clock = run.record.clock.repeats
    begun_ns = next(entry.start_ns for entry in clock if entry.repeat == repeat.repeat)
    return begun_ns * NANOSECONDS

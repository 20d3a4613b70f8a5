"""The oracles of devices that compute nothing: tokens, and the constant times of `dry`."""

from collections.abc import Iterator
from hashlib import sha256

import numpy as np
import pandas as pd

from kvscope.base.arraytypes import Bools, Floats
from kvscope.judge.oracles.clocks import repeats_of
from kvscope.judge.oracles.facts import device_class
from kvscope.judge.oracles.run_tables import NANOSECONDS, RunTables, bad_rows, combine
from kvscope.judge.planned import experiment_of
from kvscope.plan.device import Device
from kvscope.plan.devices.dry import Dry
from kvscope.tables.copies import INPUTS
from kvscope.tables.oracle import Violations
from kvscope.tables.run_data import of_repeat

TOLERANCE_S = 50e-9
"""Rounding: every wait ends on a whole nanosecond, and the times of a pass are sums of several."""


def computes_nothing(run: RunTables) -> bool:
    """Whether the settings are of a device without a worker."""
    name = run.section("device").get("name")
    return name is not None and not device_class(name).allocates


def is_dry(run: RunTables) -> bool:
    """Whether the settings are of a device whose passes take a constant time."""
    name = run.section("device").get("name")
    return name is not None and issubclass(device_class(name), Dry)


def dry_time_wrong(run: RunTables) -> Violations:
    """A pass takes `device.pass_s`, and its copies, one after another, `device.copy_s` a block.

    It begins when the previous pass has ended or, if no request is left, when a request arrives.
    """
    device = experiment_of(run.records).device
    assert isinstance(device, Dry)
    violations = [repeats_apart(run, 0.0)]
    for number in run.repeats:
        violations += _of_repeat(run, number, device)
    return combine(*violations)


def _of_repeat(run: RunTables, number: int, device: Dry) -> Iterator[Violations]:
    repeat, passes = run.repeats[number], of_repeat(run.steps, number)
    steps, ended = passes.reset_index(drop=True), run.count_ended[passes.index]
    arrived = run.count_arrived("before_s")[passes.index]
    copies = repeat.copies.reset_index(drop=True)
    copied_s = _block_counts(run, copies) * device.copy_s
    rebuilt_s: Floats = np.where(copies["rebuild_s"].notna(), device.pass_s, 0.0)
    took_s = (copies["end_s"] - copies["start_s"]).to_numpy(float)
    wrong = differs(copies["copy_s"], copied_s)
    wrong |= differs(copies["rebuild_s"].fillna(0.0), rebuilt_s)
    wrong |= differs(took_s, copied_s + rebuilt_s)
    yield wrong_time(copies, wrong, "copy_s", copied_s)

    within_s, between_s = _copying_s(steps, copies, took_s)
    pass_s = device.pass_s + within_s
    wrong = differs(steps["forward_s"], pass_s) | differs(steps["duration_s"], pass_s)
    yield wrong_time(steps, wrong, "duration_s", pass_s)
    yield takes_no_scheduling(steps)

    ready_s = steps["before_s"].to_numpy(float) + between_s
    arrivals = np.sort(repeat.requests["arrival_s"].to_numpy(float))
    following_s = np.append(arrivals, np.nan)[np.searchsorted(arrivals, ready_s - NANOSECONDS)]
    begin_s: Floats = np.where(arrived <= ended, following_s, ready_s)
    yield wrong_time(steps, differs(steps["start_s"], begin_s), "start_s", begin_s)


def _block_counts(run: RunTables, copies: pd.DataFrame) -> Floats:
    """Blocks that each copy moves, by its bytes; a copy may save a part of a block."""
    of_inputs = (copies["kind"] == INPUTS).to_numpy()
    sizes = float(run.engine.input_block_bytes or 1), float(run.engine.block_bytes or 1)
    counts: Floats = copies["bytes"].to_numpy(float) / np.where(of_inputs, *sizes)
    return counts


def _copying_s(steps: pd.DataFrame, copies: pd.DataFrame, each_s: Floats) -> tuple[Floats, Floats]:
    """Seconds of the copies that begin within each pass, and of those since the pass before.

    Each took so long by the clock, which rounds it to whole nanoseconds.
    """
    begin_s = copies["start_s"].to_numpy(float) + TOLERANCE_S
    pass_rows = np.searchsorted(steps["start_s"].to_numpy(float), begin_s, side="right") - 1
    within = (pass_rows >= 0) & (begin_s <= steps["end_s"].to_numpy(float)[pass_rows] + TOLERANCE_S)
    count = len(steps) + 1
    within_s: Floats = np.bincount(pass_rows[within], each_s[within], count).astype(float)
    between_s: Floats = np.bincount(pass_rows[~within] + 1, each_s[~within], count).astype(float)
    return within_s[:-1], between_s[:-1]


def modeled_output_wrong(run: RunTables) -> Violations:
    """All output tokens of a modeled request are equal, and there are as many as it sampled.

    Requests whose output tokens the workload gives are checked by `known_output_differs` instead.
    """
    workload = run.records.workload
    forced = workload.loc[workload["output_token_ids"].notna(), "request_id"]
    rows = run.records.requests[~run.records.requests["request_id"].isin(forced)]
    expected = [
        sha256(np.full(count, Device.TOKEN, "<i4").tobytes()).hexdigest()
        for count in rows["output_tokens"].tolist()
    ]
    return bad_rows(rows, rows["output_sha256"] != expected, lambda _: "not the tokens of a model")


def takes_no_scheduling(steps: pd.DataFrame) -> Violations:
    """Passes that consist of more than their forward part."""
    return bad_rows(
        steps,
        differs(steps["schedule_s"], 0.0) | differs(steps["forward_s"], steps["duration_s"]),
        lambda r: f"schedule_s is {r['schedule_s']:.9f}, a virtual clock stands still",
    )


def repeats_apart(run: RunTables, between_s: float) -> Violations:
    """A repeat ends so long after its last pass, and the next one begins then.

    Without a warm-up, the first one begins with the clock.
    """
    clock = repeats_of(run)
    last_s = run.steps.groupby("repeat")["end_s"].max().reindex(clock["repeat"]).to_numpy(float)
    due_s = last_s + between_s
    ends_ns = clock["start_ns"] + np.rint(clock["duration_s"] / NANOSECONDS).astype(np.int64)
    wrong = differs(clock["duration_s"], due_s)
    begins_ns = clock["start_ns"].to_numpy()[1:]
    after_ns = begins_ns - ends_ns.to_numpy()[:-1]
    # Jobs of vLLM's offloading end before the next repeat begins.
    wrong[1:] |= after_ns < 0 if run.offloads else after_ns != 0
    late = (clock.index == 0) & (clock["start_ns"] != 0)
    late &= not run.records.settings.get("warmup")
    return combine(
        wrong_time(clock, wrong, "duration_s", due_s),
        bad_rows(clock, late, lambda r: f"begins at {r['start_ns']:.0f} ns, though nothing ran"),
    )


def differs(
    found: pd.Series | Floats,
    expected: pd.Series | Floats | float,
    tolerance_s: float = TOLERANCE_S,
) -> Bools:
    """Mask of the times that are missing or differ from the expected time."""
    apart_s = np.asarray(found, np.float64) - np.asarray(expected, np.float64)
    wrong: Bools = ~(np.abs(apart_s) <= tolerance_s)
    return wrong


def wrong_time(frame: pd.DataFrame, wrong: Bools, column: str, due_s: Floats) -> Violations:
    """Violations, one a row with a wrong time; the first is described with the right time."""
    words = f"{column} is {{{column}:.9f}}, the cost model gives {{due_s:.9f}}"
    return bad_rows(frame, wrong, lambda r: words.format_map(r), due_s=due_s)

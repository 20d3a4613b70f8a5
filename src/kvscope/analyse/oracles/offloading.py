"""Oracles of vLLM's offloading: what it stores was computed, what it loads was stored, and used."""

import math

import numpy as np

from kvscope.analyse.oracles.copies import FASTEST_BYTES_PER_S
from kvscope.analyse.oracles.run_tables import (
    TOLERANCE_S,
    RunTables,
    bad_rows,
    combine,
    previous,
)
from kvscope.copies import KV, OUT
from kvscope.evidence import JOBS
from kvscope.oracle import Violations


def job_malformed(run: RunTables) -> Violations:
    """A job of vLLM's offloading copies blocks of K and V, once, in its turn.

    vLLM numbers jobs as it orders them. Only stores have blocks that were loaded since, at most all
    of them, and a pass that waited for them, which was not before they were ordered.
    """
    jobs = run.records.jobs.sort_values(["repeat", "job"], ignore_index=True)
    stores = jobs["direction"] == OUT
    wrong = (jobs["blocks"] < 1) | (jobs["kind"] != KV)
    turned = jobs.groupby("repeat")["ordered_s"].diff() < -TOLERANCE_S
    back = ~stores & jobs[["loaded_blocks", "awaited_step"]].notna().any(axis=1)
    back |= stores & jobs["arrived_step"].notna()
    unknown = JOBS not in run.evidence  # how much of it was loaded
    used = stores & ~((jobs["loaded_blocks"] <= jobs["blocks"]) | unknown)
    late = jobs["awaited_step"] < jobs["step"]
    return combine(
        bad_rows(jobs, wrong, lambda r: f"job {r['job']:.0f}: {r['blocks']} blocks of {r['kind']}"),
        bad_rows(jobs, turned, lambda r: f"job {r['job']:.0f} is out of turn"),
        bad_rows(
            jobs, back | used | late, lambda r: f"job {r['job']:.0f}: impossible for its direction"
        ),
    )


def job_time_wrong(run: RunTables) -> Violations:
    """A job runs after it was ordered, at a possible speed, and in the order of its direction.

    Jobs are numbered without gaps, and ordered while their pass is scheduled, or before it while
    there was nothing to compute. What a pass begins with has been loaded before.
    """
    rows = run.records.jobs.sort_values(["repeat", "direction", "job"])
    took = rows["end_s"] - rows["start_s"]
    early = rows["start_s"] < rows["ordered_s"] - TOLERANCE_S
    fast = rows["copy_s"] * FASTEST_BYTES_PER_S < rows["bytes"]
    if run.engine.copies_awaited or not run.by_clock:
        fast |= rows["copy_s"] > took + TOLERANCE_S
    links = 2 * rows["repeat"].to_numpy() + (rows["direction"] == OUT).to_numpy()
    overlap = rows["start_s"] < previous(rows["end_s"].to_numpy(), links, 0.0) - TOLERANCE_S
    loads = run.loaded[run.loaded["served_step"].notna()]
    served_s = run.steps["start_s"].to_numpy()[run.pass_of(loads, "served_step")]
    turns = run.records.jobs.sort_values(["repeat", "job"])
    gaps = turns.groupby("repeat")["job"].diff().fillna(1) != 1
    return combine(
        bad_rows(turns, gaps, lambda r: f"job {r['job']:.0f} does not follow the one before"),
        _ordered_elsewhere(run),
        bad_rows(rows, early, lambda _: "copied before it was ordered"),
        bad_rows(rows, fast | (took < 0), lambda r: f"{r['bytes']} bytes in {r['copy_s']} s"),
        bad_rows(rows, overlap, lambda _: "overlaps the previous job of its direction"),
        bad_rows(
            loads,
            served_s < loads["end_s"] - TOLERANCE_S,
            lambda r: f"its pass {r['served_step']:.0f} begins before it has been loaded",
        ),
    )


def _ordered_elsewhere(run: RunTables) -> Violations:
    """Jobs that were ordered neither in the schedule of their pass nor in an empty one before it.

    What is stored after the last pass counts to that.
    """
    steps, jobs = run.steps, run.records.jobs
    idle = run.count_arrived("before_s") <= run.count_ended
    waited_s = steps["load_wait_s"].astype(float).fillna(0)
    since_s = np.where(idle, steps["before_s"], steps["start_s"] - waited_s)
    until_s = (steps["start_s"] + steps["schedule_s"]).to_numpy(copy=True)
    until_s[[passes.stop - 1 for passes in run.passes.values()]] = math.inf
    at = run.pass_of(jobs)
    early = jobs["ordered_s"] < since_s[at] - TOLERANCE_S
    late = jobs["ordered_s"] > until_s[at] + TOLERANCE_S
    return bad_rows(jobs, early | late, lambda r: f"job {r['job']:.0f} is ordered in another pass")


def load_wait_wrong(run: RunTables) -> Violations:
    """Requests wait together only for copies: some job ends meanwhile, or in the pass before.

    The host may learn of that with the next pass only.
    """
    steps, ended = run.steps, np.zeros(len(run.steps), np.int64)
    waited_s = steps["load_wait_s"].astype(float).fillna(0).to_numpy()
    starts_s = steps["start_s"].to_numpy()
    since_s = previous(starts_s, steps["repeat"].to_numpy(), 0.0)
    for number, passes in run.passes.items():
        ends_s = np.sort(run.repeats[number].jobs["end_s"])
        ended[passes] = np.searchsorted(ends_s, starts_s[passes] + TOLERANCE_S)
        ended[passes] -= np.searchsorted(ends_s, since_s[passes])
    longer = starts_s - waited_s < steps["before_s"] - TOLERANCE_S
    return bad_rows(
        steps,
        (waited_s > 0) & (longer | (ended == 0)),
        lambda r: f"{r['waited']} s in which no job ended",
        waited=waited_s,
    )

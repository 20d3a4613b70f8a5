"""Oracles of vLLM's offloading: stored tokens were computed, loaded ones stored and used."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd

from kvscope.api.oracles import oracle, run_tables
from kvscope.api.tables import copies, evidence

ORDER = 341
"""Place of this package's first oracle on the checklist: after the oracles of other copies."""


def job_malformed(run: run_tables.RunTables) -> oracle.Violations:
    """A job of vLLM's offloading copies blocks of K and V, once, in its turn.

    vLLM numbers jobs as it orders them. Only a store has a number of blocks that were loaded
    later, at most all of them, and a pass that waited for it, not before the pass that ordered it.
    """
    jobs = run.records.jobs.sort_values(["repeat", "job"], ignore_index=True)
    stores = jobs["direction"] == copies.OUT
    wrong = (jobs["blocks"] < 1) | (jobs["kind"] != copies.KV)
    turned = jobs.groupby("repeat")["ordered_s"].diff() < -run_tables.TOLERANCE_S
    back = ~stores & jobs[["loaded_blocks", "awaited_step"]].notna().any(axis=1)
    back |= stores & jobs["arrived_step"].notna()
    unknown = evidence.JOBS not in run.evidence  # how much of it was loaded
    used = stores & ~((jobs["loaded_blocks"] <= jobs["blocks"]) | unknown)
    late = jobs["awaited_step"] < jobs["step"]
    return run_tables.combine(
        run_tables.bad_rows(
            jobs, wrong, lambda r: f"job {r['job']:.0f}: {r['blocks']} blocks of {r['kind']}"
        ),
        run_tables.bad_rows(jobs, turned, lambda r: f"job {r['job']:.0f} is out of turn"),
        run_tables.bad_rows(
            jobs, back | used | late, lambda r: f"job {r['job']:.0f}: impossible for its direction"
        ),
    )


def job_time_wrong(run: run_tables.RunTables) -> oracle.Violations:
    """A job runs after it was ordered, at a possible speed, and in the order of its direction.

    Jobs are numbered without gaps. They are ordered while their pass is scheduled, or before it if
    there was nothing to compute. Blocks that a request begins with are loaded before its pass.
    """
    rows = run.records.jobs.sort_values(["repeat", "direction", "job"])
    took = rows["end_s"] - rows["start_s"]
    early = rows["start_s"] < rows["ordered_s"] - run_tables.TOLERANCE_S
    fast = rows["copy_s"] * copies.FASTEST_BYTES_PER_S < rows["bytes"]
    if run.engine.copies_awaited or not run.by_clock:
        fast |= rows["copy_s"] > took + run_tables.TOLERANCE_S
    links = 2 * rows["repeat"].to_numpy() + (rows["direction"] == copies.OUT).to_numpy()
    overlap = (
        rows["start_s"]
        < run_tables.previous(rows["end_s"].to_numpy(), links, 0.0) - run_tables.TOLERANCE_S
    )
    loads = served_loads(run)
    served_s = run.steps["start_s"].to_numpy()[run.pass_of(loads, "served_step")]
    turns = run.records.jobs.sort_values(["repeat", "job"])
    gaps = turns.groupby("repeat")["job"].diff().fillna(1) != 1
    return run_tables.combine(
        run_tables.bad_rows(
            turns, gaps, lambda r: f"job {r['job']:.0f} does not follow the one before"
        ),
        _ordered_elsewhere(run),
        run_tables.bad_rows(rows, early, lambda _: "copied before it was ordered"),
        run_tables.bad_rows(
            rows, fast | (took < 0), lambda r: f"{r['bytes']} bytes in {r['copy_s']} s"
        ),
        run_tables.bad_rows(
            rows, overlap, lambda _: "overlaps the run_tables.previous job of its direction"
        ),
        run_tables.bad_rows(
            loads,
            served_s < loads["end_s"] - run_tables.TOLERANCE_S,
            lambda r: f"its pass {r['served_step']:.0f} begins before it has been loaded",
        ),
    )


def _ordered_elsewhere(run: run_tables.RunTables) -> oracle.Violations:
    """Jobs that were ordered neither in the schedule of their pass nor in an empty one before it.

    What is stored after the last pass counts to that.
    """
    steps, jobs = run.steps, run.records.jobs
    idle = run.count_arrived("before_s") <= run.count_ended
    waited_s = steps["load_wait_s"].astype(float).fillna(0)
    since_s = np.where(idle, steps["before_s"], steps["start_s"] - waited_s)
    until_s = (steps["start_s"] + steps["schedule_s"]).to_numpy(copy=True)
    until_s[[passes.stop - 1 for passes in run.passes.values()]] = math.inf
    pass_index = run.pass_of(jobs)
    early = jobs["ordered_s"] < since_s[pass_index] - run_tables.TOLERANCE_S
    late = jobs["ordered_s"] > until_s[pass_index] + run_tables.TOLERANCE_S
    return run_tables.bad_rows(
        jobs, early | late, lambda r: f"job {r['job']:.0f} is ordered in another pass"
    )


def load_wait_wrong(run: run_tables.RunTables) -> oracle.Violations:
    """All requests wait at once only for copies: some job ends meanwhile, or in the pass before.

    The host may learn of the end only with the next pass.
    """
    steps, ended = run.steps, np.zeros(len(run.steps), np.int64)
    waited_s = steps["load_wait_s"].astype(float).fillna(0).to_numpy()
    starts_s = steps["start_s"].to_numpy()
    since_s = run_tables.previous(starts_s, steps["repeat"].to_numpy(), 0.0)
    for number, passes in run.passes.items():
        ends_s = np.sort(run.repeats[number].jobs["end_s"])
        ended[passes] = np.searchsorted(ends_s, starts_s[passes] + run_tables.TOLERANCE_S)
        ended[passes] -= np.searchsorted(ends_s, since_s[passes])
    longer = starts_s - waited_s < steps["before_s"] - run_tables.TOLERANCE_S
    return run_tables.bad_rows(
        steps,
        (waited_s > 0) & (longer | (ended == 0)),
        lambda r: f"{r['waited']} s in which no job ended",
        waited=waited_s,
    )


def served_loads(run: run_tables.RunTables) -> pd.DataFrame:
    """The loads that a pass began with, in order, with its number as `served_step`.

    Those of requests that were aborted meanwhile are left out.
    """
    rows = run.records.loaded.sort_values(["repeat", "job"], ignore_index=True)
    begun = defaultdict(list)
    for *request, step in _places(run.batch[run.batch["loaded_tokens"] > 0]):
        begun[tuple(request)].append(step)
    served = [
        next((pass_ for pass_ in begun[tuple(request)] if pass_ >= step), math.nan)
        for *request, step in _places(rows)
    ]
    return rows.assign(served_step=np.array(served, np.float64)).dropna(subset="served_step")


def _places(frame: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    """Repeat, request and step of each row."""
    return zip(*(frame[name].tolist() for name in ("repeat", "request_id", "step")), strict=True)


def _seen(*known: str) -> Callable[[run_tables.RunTables], bool]:
    """Predicate of runs that have this evidence, and that of all passes with their times."""
    return lambda run: run.evidence.issuperset((evidence.PASSES, evidence.CLOCK, *known))


RunNeed = oracle.Need[run_tables.RunTables]


def _has_loads(run: run_tables.RunTables) -> bool:
    has_loads = bool(run.records.batch["loaded_tokens"].notna().any())
    return has_loads and _seen(evidence.JOBS)(run)


MALFORMED = oracle.Oracle(
    job_malformed,
    RunNeed("copies of vLLM's offloading", lambda run: _seen()(run) and not run.records.jobs.empty),
    ORDER,
)
TIMES = oracle.Oracle(
    job_time_wrong,
    RunNeed(
        "copies of vLLM's offloading with their times", lambda run: _seen()(run) and run.offloads
    ),
    ORDER + 1,
)
WAITS = oracle.Oracle(
    load_wait_wrong,
    RunNeed(
        "passes recorded with what is loaded before them, and the jobs that load it", _has_loads
    ),
    ORDER + 2,
)

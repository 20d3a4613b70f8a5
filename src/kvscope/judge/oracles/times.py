"""Oracles of times: passes follow one another, and layers and requests lie within them."""

import numpy as np
import pandas as pd

from kvscope.judge.oracles.run_tables import (
    OF_PASS,
    TOLERANCE_S,
    RunTables,
    bad_rows,
    combine,
)
from kvscope.judge.oracles.waiting import not_running_s
from kvscope.tables.oracle import NONE, Violations
from kvscope.tables.stalls import find_stalls

LEAST_S = 1e-6
"""Lower bound of each part of a pass, which runs more than a hundred lines of Python."""
BETWEEN_SHARE, BETWEEN_S, BETWEEN_OF_REQUEST_S = 0.2, 1e-3, 5e-5
"""Allowed time between two passes: a share of the pass, a constant, and a time a request."""


def passes_overlap(run: RunTables) -> Violations:
    """A pass begins after the previous one ends, and its parts have positive times that fit it."""
    steps = run.steps
    early = steps["start_s"] < steps["before_s"] - TOLERANCE_S
    remainder = steps["duration_s"] - steps["schedule_s"] - steps["forward_s"]
    least = np.minimum.reduce([steps["schedule_s"], steps["forward_s"], remainder])
    return combine(
        bad_rows(steps, early, lambda r: f"begins {r['before_s'] - r['start_s']:.6f} s too early"),
        bad_rows(
            steps,
            run.by_clock & (least < LEAST_S),
            lambda r: f"{r['schedule_s']:.6f} + {r['forward_s']:.6f} s of {r['duration_s']:.6f} s",
        ),
    )


def passes_apart(run: RunTables) -> Violations:
    """While requests are unfinished, the time between the passes of a repeat is short.

    The time for which the engine did not run is allowed.
    """
    steps = run.steps
    unfinished = run.count_arrived("before_s") > run.count_ended
    lost = np.where(unfinished & (steps["step"] > 0), steps["start_s"] - steps["before_s"], 0.0)
    most = BETWEEN_SHARE * steps["duration_s"] + BETWEEN_S
    most += BETWEEN_OF_REQUEST_S * steps["requests"]
    parts, idle_s = (lost, most.to_numpy(), steps["duration_s"].to_numpy()), not_running_s(run)
    rows = [(number, *(part[span].sum() for part in parts)) for number, span in run.passes.items()]
    sums = pd.DataFrame(rows, columns=["repeat", "lost", "most", "took"])
    return bad_rows(
        sums,
        sums["lost"] > sums["most"] + sums["repeat"].map(idle_s),
        lambda r: f"{r['lost']:.6f} s between passes that take {r['took']:.6f} s",
    )


def stalled_wrong(run: RunTables) -> Violations:
    """`stalled` follows from a pass's duration and shape class by the rule for stalls."""
    steps = run.records.steps
    return bad_rows(
        steps,
        steps["stalled"].astype(bool).to_numpy() != find_stalls(steps),
        lambda r: f"{r['duration_s']:.6f} s, {'stalled' if r['stalled'] else 'not stalled'}",
    )


def layers_outside_pass(run: RunTables) -> Violations:
    """Every pass runs every layer once and in order, within the forward part of the pass."""
    count = run.engine.layers or 0
    layers = run.records.layers.sort_values([*OF_PASS, "start_s"], ignore_index=True)
    layers = layers.merge(
        run.steps[[*OF_PASS, "start_s", "schedule_s", "forward_s"]],
        on=OF_PASS,
        suffixes=("", "_of"),
    )
    layers["end_s"] = layers["start_s"] + layers["duration_s"]
    begins = layers["start_s_of"] + layers["schedule_s"]
    ends = begins + layers["forward_s"]
    before = layers.groupby(OF_PASS)["end_s"].shift(fill_value=0.0)
    outside = (layers["start_s"] < begins - TOLERANCE_S) | (layers["end_s"] > ends + TOLERANCE_S)
    overlap = layers["start_s"] < before - TOLERANCE_S
    place = layers.groupby(OF_PASS).cumcount()
    disorder = layers["layer"] != place
    between = (layers["start_s"] - before)[place > 0]
    sizes = run.steps[OF_PASS].join(
        run.records.layers.groupby(OF_PASS).size().rename("layers"), on=OF_PASS
    )
    few = sizes["layers"].fillna(0) != count
    return combine(
        bad_rows(layers, outside, lambda _: "outside the forward part of its pass"),
        bad_rows(layers, overlap, lambda _: "begins before the previous layer ends"),
        bad_rows(layers, disorder, lambda _: "out of order"),
        bad_rows(sizes, few, lambda r: f"{r['layers']:.0f} of {count} layers"),
        Violations(1, "the median gap between layers exceeds the median layer")
        if run.by_clock and between.median() > layers["duration_s"].median()
        else NONE,
    )


def given_up_wrong(run: RunTables) -> Violations | None:
    """A request is aborted between two passes, at the first end of a pass after its timeout.

    The timeout counts from the arrival. It is checked after each pass that begins after the
    arrival.
    """
    timeout_s = run.section("workload").get("timeout_s")
    aborted = run.records.aborted
    if timeout_s is None or aborted.empty:
        return None
    limited = aborted.assign(limit=aborted["arrival_s"] + timeout_s)
    wrong = limited["finished_s"] < limited["limit"] - TOLERANCE_S
    for repeat, steps in run.steps.groupby("repeat"):
        rows = limited[limited["repeat"] == repeat]
        times_s = rows["finished_s"].to_numpy()
        inside = steps["start_s"].searchsorted(times_s - TOLERANCE_S) > steps["end_s"].searchsorted(
            times_s + TOLERANCE_S
        )
        earlier = steps["end_s"].searchsorted(times_s + TOLERANCE_S) - 2
        before = steps.iloc[np.maximum(earlier, 0)]
        checked = (earlier >= 0) & (before["before_s"].to_numpy() >= rows["arrival_s"].to_numpy())
        late = checked & (before["end_s"].to_numpy() > rows["limit"].to_numpy() + TOLERANCE_S)
        wrong[rows.index] |= inside | late
    words = "aborted at {0:.6f} s, its timeout was at {1:.6f} s"
    return bad_rows(limited, wrong, lambda r: words.format(r["finished_s"], r["limit"]))

"""Oracles of time: it runs forward, and what lies within something else does so."""

import numpy as np
import pandas as pd

from kvscope.analyse.oracles.recorded_run import (
    OF_PASS,
    OF_REQUEST,
    TOLERANCE_S,
    RecordedRun,
    both,
    where,
)
from kvscope.oracle import NONE, Violations
from kvscope.stalls import find_stalls

LEAST_S = 1e-6
"""No part of a pass is as short: each is more than a hundred lines of Python."""
BETWEEN_SHARE, BETWEEN_S, BETWEEN_OF_REQUEST_S = 0.2, 1e-3, 5e-5
"""What the engine may take between two passes: of their time, by pass, and by request in it."""


def passes_overlap(run: RecordedRun) -> Violations:
    """A pass begins after the one before has ended, and its parts all take time and fit into it."""
    steps = run.steps
    early = steps["start_s"] < steps["before_s"] - TOLERANCE_S
    rest = steps["duration_s"] - steps["schedule_s"] - steps["forward_s"]
    least = np.minimum.reduce([steps["schedule_s"], steps["forward_s"], rest])
    return both(
        where(steps, early, lambda r: f"begins {r['before_s'] - r['start_s']:.6f} s too early"),
        where(
            steps,
            run.measured & (least < LEAST_S),
            lambda r: f"{r['schedule_s']:.6f} + {r['forward_s']:.6f} s of {r['duration_s']:.6f} s",
        ),
    )


def passes_apart(run: RecordedRun) -> Violations:
    """While a request is there pass follows pass: little time is lost between them."""
    steps = run.steps
    left = run.arrived("before_s") > run.ended_before
    lost = (steps["start_s"] - steps["before_s"]).where(left & (steps["step"] > 0), 0.0)
    most = BETWEEN_SHARE * steps["duration_s"] + BETWEEN_S
    most += BETWEEN_OF_REQUEST_S * steps["requests"]
    parts = pd.DataFrame({"lost": lost, "most": most, "took": steps["duration_s"]})
    sums = parts.groupby(steps["repeat"]).sum().reset_index()
    return where(
        sums,
        sums["lost"] > sums["most"],
        lambda r: f"{r['lost']:.6f} s between passes that took {r['took']:.6f} s",
    )


def stalled_wrong(run: RecordedRun) -> Violations:
    """A pass counts as stalled where its duration, beside those of its kind, says so."""
    steps = run.records.steps
    return where(
        steps,
        steps["stalled"].astype(bool).to_numpy() != find_stalls(steps),
        lambda r: f"{r['duration_s']:.6f} s, {'stalled' if r['stalled'] else 'not stalled'}",
    )


def layers_outside_pass(run: RecordedRun) -> Violations:
    """Every pass runs every layer once, one after another, between its schedule and its tokens."""
    count = run.engine["layers"]
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
    return both(
        where(layers, outside, lambda _: "outside of the pass's forward part"),
        where(layers, overlap, lambda _: "begins before the layer before has ended"),
        where(layers, disorder, lambda _: "out of order"),
        where(sizes, few, lambda r: f"{r['layers']:.0f} of {count} layers"),
        Violations(1, "more time lies between layers than in them")
        if run.measured and between.median() > layers["duration_s"].median()
        else NONE,
    )


def request_times_differ(run: RecordedRun) -> Violations:
    """A request's times are those of its passes, and follow one another.

    It is first scheduled when its first pass begins; its first token comes when the first pass
    ends that gave it one, its last with the last; none of this is before its arrival.
    """
    found = run.requests.join(_times(run), on=OF_REQUEST)
    served = ~found["aborted"].astype(bool)
    # A time that the passes know must be in `requests`, and no other.
    differ = _differ(found["first_scheduled_s"], found["begun"])
    differ |= _differ(found["first_token_s"], found["first_given"])
    differ |= served & _differ(found["finished_s"], found["last_given"])
    order = [found[c] for c in ("arrival_s", "begun", "first_given", "finished_s")]
    disorder = pd.Series(False, found.index)
    for place, later in enumerate(order):
        for earlier in order[:place]:
            disorder |= later < earlier - TOLERANCE_S
    return both(
        where(found, differ, lambda _: "its times are not those of its passes"),
        where(found, disorder, lambda _: "its times do not follow one another"),
    )


def given_up_wrong(run: RecordedRun) -> Violations | None:
    """A request is given up between two passes, at the first end of a pass after its time is over.

    It counts from its arrival, and is looked at from the first pass on that begins after that.
    """
    timeout_s = run.section("workload").get("timeout_s")
    gone = run.records.aborted
    if timeout_s is None or gone.empty:
        return None
    found = gone.assign(limit=gone["arrival_s"] + timeout_s)
    wrong = found["finished_s"] < found["limit"] - TOLERANCE_S
    for repeat, steps in run.steps.groupby("repeat"):
        rows = found[found["repeat"] == repeat]
        at = rows["finished_s"].to_numpy()
        inside = steps["start_s"].searchsorted(at - TOLERANCE_S) > steps["end_s"].searchsorted(
            at + TOLERANCE_S
        )
        earlier = steps["end_s"].searchsorted(at + TOLERANCE_S) - 2
        known = steps.iloc[np.maximum(earlier, 0)]
        looked = (earlier >= 0) & (known["before_s"].to_numpy() >= rows["arrival_s"].to_numpy())
        late = looked & (known["end_s"].to_numpy() > rows["limit"].to_numpy() + TOLERANCE_S)
        wrong[rows.index] |= inside | late
    words = "given up at {0:.6f} s, its time was over at {1:.6f} s"
    return where(found, wrong, lambda r: words.format(r["finished_s"], r["limit"]))


def _times(run: RecordedRun) -> pd.DataFrame:
    """By request: when its first pass began, and when its first and last token were there."""
    rows = run.batch.merge(run.steps[[*OF_PASS, "start_s", "end_s"]], on=OF_PASS)
    given = rows[rows["sampled_tokens"] > 0].groupby(OF_REQUEST)["end_s"]
    return pd.DataFrame(
        {
            "begun": rows.groupby(OF_REQUEST)["start_s"].min(),
            "first_given": given.min(),
            "last_given": given.max(),
        }
    )


def _differ(one: pd.Series, other: pd.Series) -> pd.Series:
    """Where two times differ, or only one of them is there."""
    return ((one - other).abs() > TOLERANCE_S) | (one.isna() != other.isna())

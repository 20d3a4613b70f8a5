"""Oracles of time: it runs forward, and what lies within something else does so."""

import pandas as pd

from kvscope.analyse.oracles.run import OF_PASS, OF_REQUEST, TOLERANCE_S, Run, both, where
from kvscope.oracle import Violations
from kvscope.stalls import stalled


def passes_overlap(run: Run) -> Violations | None:
    """A pass begins after the one before has ended, and its parts fit into its duration."""
    steps = run.steps
    early = steps["start_s"] < steps["before_s"] - TOLERANCE_S
    if run.imported:
        return None  # durations and times were published apart, and rounded
    parts = steps["schedule_s"] + steps["forward_s"]
    return both(
        where(steps, early, lambda r: f"begins {r['before_s'] - r['start_s']:.6f} s too early"),
        where(
            steps,
            parts > steps["duration_s"] + TOLERANCE_S,
            lambda r: f"{r['schedule_s'] + r['forward_s']:.6f} s of {r['duration_s']:.6f} s",
        ),
    )


def stalled_wrong(run: Run) -> Violations | None:
    """A pass counts as stalled where its duration, beside those of its kind, says so."""
    steps = run.records.steps
    return where(
        steps,
        steps["stalled"].astype(bool).to_numpy() != stalled(steps),
        lambda r: f"{r['duration_s']:.6f} s, {'stalled' if r['stalled'] else 'not stalled'}",
    )


def layers_outside_pass(run: Run) -> Violations | None:
    """Every pass runs every layer once, in order, between its schedule and its sampled tokens."""
    count = run.engine.get("layers")
    if not count or run.layers.empty:
        return None
    layers = run.layers.sort_values([*OF_PASS, "start_s"], ignore_index=True)
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
    disorder = layers["layer"] != layers.groupby(OF_PASS).cumcount()
    sizes = run.steps[OF_PASS].join(run.layers.groupby(OF_PASS).size().rename("layers"), on=OF_PASS)
    few = sizes["layers"].fillna(0) != count
    return both(
        where(layers, outside, lambda _: "outside of the pass's forward part"),
        where(layers, overlap, lambda _: "begins before the layer before has ended"),
        where(layers, disorder, lambda _: "out of order"),
        where(sizes, few, lambda r: f"{r['layers']:.0f} of {count} layers"),
    )


def request_times_differ(run: Run) -> Violations | None:
    """A request's times are those of its passes, and follow one another.

    It is first scheduled when its first pass begins; its first token comes when the first pass
    ends that gave it one, its last with the last; none of this is before its arrival.
    """
    if run.requests.empty:
        return None
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


def _times(run: Run) -> pd.DataFrame:
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

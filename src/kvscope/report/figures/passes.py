"""Forward passes over time: thinned for a plot, and as small multiples, an experiment each."""

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from kvscope.base.quantities import plural
from kvscope.report.data import ReportedRun, StudyData
from kvscope.report.figures.figure import Drawing, Spec, View, number, plot_width, text
from kvscope.report.figures.spread import SMALL, some_of, spread

MOST = 12  # experiments; the step timelines show them all
MOST_PASSES = 300  # of a repeat: as many as a plot on paper has pixels
COLUMNS = 2
LABEL_PX = 56
TIME = "time since the start of the repeat (s)"
STEPS: dict[str, Any] = {"interpolate": "step-after", "clip": True}

# Between passes the host needs far less; a longer gap means that no request was there.
IDLE_S = 0.01

# How a column of several consecutive passes becomes one value.
MERGE = {
    "step": "first",
    "start_s": "first",
    "prefill_tokens": "mean",
    "decode_tokens": "mean",
    "requests": "max",
    "waiting_requests": "max",
    "kv_blocks_used": "max",
    "kv_blocks_total": "max",
    "kv_tokens_used": "max",
    "host_blocks_used": "max",
    "host_blocks_total": "max",
    "group_blocks_used": "first",
    "kv_bytes_used": "max",
    "stalled": "max",
}

# Columns that are 0 while no request is there, if they are known.
NOTHING = (
    "prefill_tokens",
    "decode_tokens",
    "requests",
    "waiting_requests",
    "kv_blocks_used",
    "kv_tokens_used",
    "kv_bytes_used",
    "host_blocks_used",
)


def merged_passes(passes: int, limit: int) -> int:
    """How many consecutive passes must become one so that at most `limit` are left."""
    return max(1, -(-passes // limit))


def thin(steps: pd.DataFrame, limit: int) -> pd.DataFrame:
    """The passes of one repeat with their `end_s` and `last_step`, at most `limit` rows.

    Of merged passes the tokens are means per pass, everything else is the largest value. Passes
    before and after an idle time that a plot of `limit` points shows are not merged: it ends a row.
    """
    together = merged_passes(len(steps), limit)
    frame = steps.assign(end_s=steps["start_s"] + steps["duration_s"], last_step=steps["step"])
    if together == 1:
        return frame[[*MERGE, "end_s", "last_step"]]
    idle_s = frame["start_s"] - frame["end_s"].shift()
    shown_s = (frame["end_s"].iloc[-1] - frame["start_s"].iloc[0]) / limit
    stretches = (idle_s > max(IDLE_S, shown_s)).cumsum()
    groups = frame.groupby(stretches).cumcount() // together
    merged: pd.DataFrame = frame.groupby([stretches, groups]).agg(
        {**MERGE, "end_s": "last", "last_step": "last"}
    )
    return merged.reset_index(drop=True)


def with_idle(passes: pd.DataFrame) -> pd.DataFrame:
    """`thin`'s rows with a row of zeros wherever the engine was idle after a pass."""
    following = passes["start_s"].shift(-1)
    idle = passes[following - passes["end_s"] > IDLE_S]
    recorded = [name for name in NOTHING if passes[name].notna().any()]
    empty = idle.assign(
        start_s=idle["end_s"],
        end_s=following[idle.index],
        **dict.fromkeys(recorded, 0),
    )
    return pd.concat([passes, empty]).sort_values("start_s", ignore_index=True)


def passes(thinned: pd.DataFrame) -> pd.DataFrame:
    """`with_idle`'s rows, and the last one again at its end: a step plot reaches until there."""
    shown = with_idle(thinned)
    last = shown.iloc[[-1]].assign(start_s=shown["end_s"].iloc[-1])
    return pd.concat([shown, last], ignore_index=True)


def runs_with_passes(study: StudyData) -> list[ReportedRun]:
    """The complete experiments that have a repeat to show."""
    return [run for run in study.complete if run.has_passes]


def shown_runs(study: StudyData) -> list[ReportedRun]:
    """The experiments that `multiples` shows."""
    return spread(runs_with_passes(study), MOST)


def multiples(
    study: StudyData,
    columns_of: Callable[[ReportedRun, pd.DataFrame], dict[str, Any]],
    layers: Sequence[Spec],
    more: Callable[[ReportedRun], pd.DataFrame] | None = None,
) -> Drawing | None:
    """The layers over time, a facet an experiment; None without experiments.

    `columns_of` gives what is drawn of the passes, with those of `passes`; `more` gives
    further rows, with their `start_s`.
    """
    runs = shown_runs(study)
    if not runs:
        return None
    frames = []
    for run in runs:
        steps = passes(thin(run.steps(run.repeats[0]), MOST_PASSES))
        frame = pd.DataFrame({"start_s": steps["start_s"].round(5), **columns_of(run, steps)})
        parts = [frame, more(run)] if more else [frame]
        frames += [part.assign(experiment=run.label) for part in parts if not part.empty]
    columns = min(COLUMNS, len(runs))
    chart = {
        "data": {"name": "passes"},
        "facet": text("experiment", sort=[run.label for run in runs], title=None),
        "columns": columns,
        "spec": {
            "width": plot_width(columns, LABEL_PX),
            "height": 110 if columns > 1 else 200,
            "encoding": {
                "x": number("start_s", title=TIME, scale={"nice": False}, axis={"tickCount": 6})
            },
            "layer": list(layers),
        },
        "resolve": {"axis": {"x": "independent"}},
    }
    count = len(runs_with_passes(study))
    first = f"The first {MOST} of {plural(count, 'experiment')}."
    notes = [first] if MOST < count <= SMALL else []
    most = max(len(run.steps(run.repeats[0])) for run in runs)
    if (merged := merged_passes(most, MOST_PASSES)) > 1:
        notes.append(f"Up to {merged} consecutive passes are drawn as one.")
    remarks = some_of(len(runs), count) if count > SMALL else ()
    data = {"passes": pd.concat(frames, ignore_index=True)}
    view = View(chart, data, note=" ".join(notes), remarks=remarks)
    return Drawing((view,), label_px=LABEL_PX)

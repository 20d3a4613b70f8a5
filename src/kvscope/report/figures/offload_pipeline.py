"""What link and device did during one decoding pass of the offload engine, by policy."""

from collections.abc import Iterator

import pandas as pd

from kvscope.report.data import StudyData
from kvscope.report.figures.figure import (
    PAPER,
    Drawing,
    Figure,
    Spec,
    View,
    colours,
    number,
    text,
)
from kvscope.report.figures.offload_shares import facts_of

LABEL_PX = 60
LANES = {"link": "host to device", "device": "compute", "back": "device to host"}
JOBS = ("weights", "load", "compute", "store")
TITLES = {"load": "load context", "store": "store new rows"}
MOST_EXPERIMENTS = 30


def draw(study: StudyData) -> Drawing | None:
    """A view for each experiment, measured and simulated."""
    views = tuple(_views(study))
    return Drawing(views, ("Experiment", "Times"), LABEL_PX) if views else None


def _views(study: StudyData) -> Iterator[View]:
    runs = [run for run in study.complete if facts_of(run).get("timeline")]
    for run in runs[:MOST_EXPERIMENTS]:
        for source, intervals in facts_of(run)["timeline"].items():
            if not intervals:
                continue
            frame = pd.DataFrame(intervals)
            frame["lane"] = frame["lane"].map(LANES)
            frame["job"] = frame["job"].map(lambda job: TITLES.get(job, job))
            frame["ms"] = 1e3 * (frame["end_s"] - frame["start_s"])
            busy = frame.groupby("lane")["ms"].sum() / (1e3 * frame["end_s"].max())
            parts = [f"{lane} busy {busy.get(lane, 0):.0%}" for lane in LANES.values()]
            yield View(_chart(), {"jobs": frame}, (run.label, source), f"{'; '.join(parts)}.")


def _chart() -> Spec:
    names = [TITLES.get(job, job) for job in JOBS]
    return {
        "data": {"name": "jobs"},
        "width": PAPER - LABEL_PX - 40,
        "height": {"step": 34},
        "mark": {"type": "bar", "stroke": "white", "strokeWidth": 0.4},
        "encoding": {
            "y": text("lane", title=None, sort=list(LANES.values())),
            "x": number("start_s", title="time since the pass began (s)"),
            "x2": {"field": "end_s"},
            "color": text("job", scale=colours(names), legend={"title": None, "orient": "top"}),
            "tooltip": [
                text("job"),
                number("layer"),
                number("minibatch", title="mini-batch"),
                number("ms", format=".4~g"),
            ],
        },
    }


FIGURE = Figure(
    "offload_pipeline",
    "Pipeline of a decoding pass",
    "What the link, the device and the way back did during one decoding pass of the warm-up, and "
    "what the simulation of the same schedule says.",
    draw,
    section="timeline",
)

"""Use of link and device during a decoding pass of the offload engine, by policy.

Batches differ, as what a policy keeps on the device bounds its batch: times are for each token that
the pass gives, one a request.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from kvscope.api.figures import Axes, charts
from kvscope.api.sections import ReportedRun, StudyData, section
from kvscope.api.wording import traits, wording
from kvscope_offload.figures.facts import (
    ABLATIONS,
    by_conditions,
    facts_of,
    offload_runs,
    policy_of,
)

LABEL_PX = 100
LANES = {"link": "host to device", "device": "compute", "back": "device to host"}
JOBS = ("weights", "load", "compute", "store")
TITLES = {"load": "load context", "store": "store new rows"}
SETTINGS = ("share", *ABLATIONS)  # of a policy, where they are given
MOST_RUNS = 12  # under each other


def draw(study: StudyData, axes: Sequence[Axes]) -> charts.Drawing | None:
    """A view for each set of conditions, measured and simulated."""
    views = tuple(_views(study, axes))
    return charts.Drawing(views, ("Conditions", "Times"), LABEL_PX) if views else None


def _views(study: StudyData, axes: Sequence[Axes]) -> Iterator[charts.View]:
    groups = by_conditions(offload_runs(study, axes, "requests"))
    for conditions, runs in groups.items():
        for source in ("measured", "simulated"):
            frames = {_words(run): _jobs(run, source) for run in runs[:MOST_RUNS]}
            shown = {words: frame for words, frame in frames.items() if len(frame)}
            if shown:
                yield _view(shown, (conditions, source))


def _jobs(run: ReportedRun, source: str) -> pd.DataFrame:
    frame = pd.DataFrame(facts_of(run)["timeline"].get(source) or [])
    if frame.empty:
        return frame
    tokens = facts_of(run)["requests"]  # that the pass gives
    frame["ms"] = 1e3 * (frame["end_s"] - frame["start_s"])
    frame[["start_ms", "end_ms"]] = 1e3 / tokens * frame[["start_s", "end_s"]]
    frame["lane"] = frame["lane"].map(LANES)
    frame["job"] = frame["job"].map(lambda job: TITLES.get(job, job))
    return frame


def _words(run: ReportedRun) -> str:
    """'hybrid, 1 staging buffer, batch of 128': the policy, settings that are given, requests."""
    device = run.settings["device"]
    given = [key for key in SETTINGS if device.get(key) is not None]
    settings = (traits.setting_words(f"device.{key}", device[key]) for key in given)
    return ", ".join((policy_of(run), *settings, f"batch of {facts_of(run)['requests']}"))


def _view(frames: dict[str, pd.DataFrame], choice: tuple[str, str]) -> charts.View:
    longest_ms = max(float(frame["end_ms"].max()) for frame in frames.values())
    data = {f"jobs{place}": frame for place, frame in enumerate(frames.values())}
    cells = [
        _cell(place, words, frame, longest_ms)
        for place, (words, frame) in enumerate(frames.items())
    ]
    return charts.View(charts.grid(cells, 1), data, choice)


def _cell(place: int, words: str, frame: pd.DataFrame, longest_ms: float) -> charts.Spec:
    title = "time since the pass began, over the tokens it gives (ms a token)"
    x = {"title": title, "scale": {"domain": [0, longest_ms]}}
    names = [TITLES.get(job, job) for job in JOBS]
    return {
        "title": {"text": words, "subtitle": _busy(frame)},
        "data": {"name": f"jobs{place}"},
        "width": charts.PAPER - LABEL_PX - 30,
        "height": {"step": 22},
        "mark": {"type": "bar", "stroke": "white", "strokeWidth": 0.3},
        "encoding": {
            "y": charts.text("lane", title=None, sort=list(LANES.values())),
            "x": charts.number("start_ms", **x),
            "x2": {"field": "end_ms"},
            "color": charts.text(
                "job", scale=charts.colours(names), legend={"title": None, "orient": "bottom"}
            ),
            "tooltip": [
                charts.text("job"),
                charts.number("layer"),
                charts.number("minibatch", title="mini-batch"),
                charts.number("ms", format=".4~g"),
            ],
        },
    }


def _busy(frame: pd.DataFrame) -> str:
    """'host to device busy 98 %, compute busy 100 %', of the time shown."""
    whole_ms = 1e3 * frame["end_s"].max()
    busy = frame.groupby("lane")["ms"].sum() / whole_ms
    shown: list[Any] = [lane for lane in LANES.values() if lane in busy]
    return ", ".join(f"{lane} busy {wording.percent(busy[lane])}" for lane in shown)


FIGURE = charts.Figure(
    "Pipeline of a decoding pass",
    "What the link, the device and the way back did during the first layers of a decoding pass of "
    "the warm-up, and what the simulation of the same schedule says. A pass gives each request of "
    "its batch a token; times are divided by their number, so that batches of any size compare.",
    draw,
    order=220,
    axes=charts.SELECTED,
)
SECTION = section.Section(FIGURE.title, order=520, figure="offload_pipeline")

"""Decoding passes of the offload engine over the share of activations, and as predicted."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from kvscope.api.figures import Axes, charts, theme
from kvscope.api.sections import ReportedRun, StudyData
from kvscope_offload.figures.facts import (
    by_conditions,
    decoding_pass_s,
    facts_of,
    is_ablated,
    offload_runs,
    policy_of,
)

HEIGHT = 170
COLUMNS = 2
LABEL_PX = 60
PIPELINED = ("kv_only", "act_only", "hybrid")  # they differ in nothing but the share
CHOICE = "the hybrid policy's choice"


def draw(study: StudyData, axes: Sequence[Axes]) -> charts.Drawing | None:
    """Two plots for each set of runs with the same prediction: passes, and how well predicted."""
    runs = offload_runs(study, axes, "predicted")
    shown = [run for run in runs if policy_of(run) in PIPELINED and not is_ablated(run)]
    shown = [run for run in shown if not facts_of(run)["split"]["token"]]  # ids are off the axis
    groups = by_conditions(shown)
    swept = {words: group for words, group in groups.items() if len(group) > 2}
    if not swept:
        return None
    data: dict[str, pd.DataFrame] = {}
    cells, notes = [], []
    names = sorted({policy_of(run) for group in swept.values() for run in group})
    for place, (words, group) in enumerate(swept.items()):
        facts, points = facts_of(group[0]), pd.DataFrame([_point(run) for run in group])
        data[f"points{place}"] = points
        data[f"line{place}"] = pd.DataFrame(facts["predicted"], columns=["share", "step_s"])
        data[f"best{place}"] = pd.DataFrame([{"share": facts["best_activation_share"]}])
        cells += [
            _passes(place, words, facts["best_activation_share"], names),
            _ratios(place, names),
        ]
        notes.append(_note(points))
    return charts.Drawing(
        (charts.View(charts.grid(cells, COLUMNS), data, note=" ".join(notes)),), (), LABEL_PX
    )


def _point(run: ReportedRun) -> dict[str, Any]:
    step_s, facts = decoding_pass_s(run), facts_of(run)
    return {
        "share": facts["split"]["activation"],
        "step_s": step_s,
        "simulated_s": facts["simulated_step_s"],
        "ratio": step_s / facts["simulated_step_s"],
        "policy": policy_of(run),
        "experiment": run.label,
    }


def _note(points: pd.DataFrame) -> str:
    """'Decoding passes took 0.97 to 1.08 times what the simulation says.'"""
    low, high = (f"{ratio:.2f}" for ratio in (points["ratio"].min(), points["ratio"].max()))
    span = low if low == high else f"{low} to {high}"
    return f"Decoding passes took {span} times what the simulation says."


def _passes(place: int, words: str, share: float, names: list[str]) -> charts.Spec:
    y = charts.number("step_s", title=None, scale={"zero": True})
    line = {
        "data": {"name": f"line{place}"},
        "mark": {"type": "line", "strokeWidth": 1.2, "color": theme.GREY},
        "encoding": {"y": y},
    }
    return _cell(
        place, charts.heading("Decoding pass (s)", words), [line, _choice(place, share)], y, names
    )


def _ratios(place: int, names: list[str]) -> charts.Spec:
    y = charts.number(
        "ratio", title=None, scale={"domainMin": 0.7, "domainMax": 1.3, "clamp": True}
    )
    row = {
        "data": {"values": [{"ratio": 1}]},
        "mark": {"type": "rule", "color": theme.GREY},
        "encoding": {"y": y, "x": None},
    }
    title = charts.heading("Decoding pass over its prediction", "by the simulation of the schedule")
    return _cell(place, title, [row], y, names)


def _cell(
    place: int, title: charts.Spec, under: list[charts.Spec], y: charts.Spec, names: list[str]
) -> charts.Spec:
    tooltip = [
        {"field": "experiment", "type": "nominal"},
        charts.number("step_s", title="decoding pass (s)", format=".4~g"),
        charts.number("simulated_s", title="simulated (s)", format=".4~g"),
        charts.number("ratio", title="over simulated", format=".3~f"),
    ]
    points = {
        "data": {"name": f"points{place}"},
        "mark": {"type": "point", "filled": True, "size": 55},
        "encoding": {"y": y, "color": charts.colour_channel(names, "policy"), "tooltip": tooltip},
    }
    x = charts.number("share", title="activations (share of context)", scale={"domain": [0, 1]})
    return {
        **title,
        "width": charts.plot_width(COLUMNS, LABEL_PX),
        "height": HEIGHT,
        "encoding": {"x": x},
        "layer": [*under, points],
    }


def _choice(place: int, share: float) -> charts.Spec:
    side = {"align": "right", "dx": -4} if share > 0.5 else {"align": "left", "dx": 4}
    return {
        "data": {"name": f"best{place}"},
        "layer": [
            {"mark": {"type": "rule", "strokeDash": [4, 3], "color": theme.GREY}},
            {
                "mark": {"type": "text", "baseline": "bottom", "dy": -4, **side},
                "encoding": {"text": {"value": CHOICE}, "y": {"value": HEIGHT}},
            },
        ],
    }


FIGURE = charts.Figure(
    "Share of activations",
    "Left: the median decoding pass of the pipelined policies, at the share of the context that "
    "each keeps as activations. Line: the closed form, with the first run's cost model; "
    "dashed: what the hybrid policy takes with it. Right: the same passes over what the "
    "simulation of the schedule says of each run.",
    draw,
    order=140,
    axes=charts.SELECTED,
)

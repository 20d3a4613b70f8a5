"""Decoding passes of the offload engine: measured, and predicted over the share of activations."""

from typing import Any

import pandas as pd

from kvscope.report.data import Run, StudyData
from kvscope.report.figures.figure import (
    Drawing,
    Figure,
    Spec,
    View,
    colour_channel,
    grid,
    heading,
    number,
    plot_width,
)

HEIGHT = 200
COLUMNS = 2
LABEL_PX = 60


def facts_of(run: Run) -> dict[str, Any]:
    """What run.json says of the offload engine; empty of other runs."""
    found = run.facts.get("engine", {}).get("offload")
    return found if isinstance(found, dict) else {}


def policy_of(run: Run) -> str:
    """The offload policy."""
    return str(run.settings["device"]["policy"])


def draw(study: StudyData) -> Drawing | None:
    """A plot for each set of runs with the same prediction: points on a line."""
    runs = [run for run in study.complete if facts_of(run).get("predicted")]
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(_conditions(run), []).append(run)
    shown = {key: group for key, group in groups.items() if len(group) > 2}
    if not shown:
        return None
    data: dict[str, pd.DataFrame] = {}
    cells = []
    for place, (conditions, group) in enumerate(shown.items()):
        data[f"points{place}"] = pd.DataFrame([_point(run) for run in group])
        data[f"line{place}"] = pd.DataFrame(
            facts_of(group[0])["predicted"], columns=["share", "step_s"]
        )
        data[f"best{place}"] = pd.DataFrame(
            [{"share": facts_of(group[0])["best_activation_share"]}]
        )
        cells.append(_cell(place, conditions, sorted({policy_of(run) for run in group})))
    return Drawing((View(grid(cells, COLUMNS), data),), (), LABEL_PX)


def _conditions(run: Run) -> tuple[Any, ...]:
    """What decides the prediction beside the split."""
    device, workload = run.settings["device"], run.settings["workload"]
    return (
        run.settings["model"]["name"],
        workload.get("prompt_tokens"),
        device.get("weights") or "streamed",
        device.get("device_gib"),
    )


def _point(run: Run) -> dict[str, Any]:
    steps = pd.concat([run.steps(repeat) for repeat in run.repeats])
    decode = steps[(steps["phase"] == "decode") & ~steps["stalled"].astype(bool)]["duration_s"]
    return {
        "share": facts_of(run)["split"]["activation"],
        "step_s": float(decode.median()),
        "simulated_s": facts_of(run)["simulated_step_s"],
        "policy": policy_of(run),
        "experiment": run.label,
    }


def _cell(place: int, conditions: tuple[Any, ...], names: list[str]) -> Spec:
    model, prompt, weights, _ = conditions
    lengths = f", prompts of {prompt} tokens" if prompt else ""
    x = number("share", title="activations (share of context)", scale={"domain": [0, 1]})
    y = number("step_s", title=None, scale={"zero": True})
    tooltip: list[Spec] = [
        {"field": "experiment", "type": "nominal"},
        number("step_s", title="measured (s)", format=".4~g"),
        number("simulated_s", title="simulated (s)", format=".4~g"),
    ]
    return {
        **heading("Decoding pass (s)", f"{model}{lengths}, weights {weights}"),
        "width": plot_width(COLUMNS, LABEL_PX),
        "height": HEIGHT,
        "encoding": {"x": x},
        "layer": [
            {
                "data": {"name": f"line{place}"},
                "mark": {"type": "line", "strokeWidth": 1.2, "color": "#888888"},
                "encoding": {"y": y},
            },
            {
                "data": {"name": f"best{place}"},
                "mark": {"type": "rule", "strokeDash": [4, 3], "color": "#888888"},
            },
            {
                "data": {"name": f"points{place}"},
                "mark": {"type": "point", "filled": True, "size": 55},
                "encoding": {
                    "y": y,
                    "color": colour_channel(names, "policy"),
                    "tooltip": tooltip,
                },
            },
        ],
    }


FIGURE = Figure(
    "offload_shares",
    "Share of activations",
    "Points: the median decoding pass of each policy, as measured, at the share of the context it "
    "keeps as activations. Line: the closed form of the first run's cost model; dashed: its "
    "optimum, which the hybrid policy takes.",
    draw,
)

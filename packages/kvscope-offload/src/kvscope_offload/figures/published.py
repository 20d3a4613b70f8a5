"""What HybridServe (arXiv 2501.01792) publishes of its gains, beside those of modeled runs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

import pandas as pd

from kvscope.plan.figures import Axes
from kvscope.report.comparisons import capitalize_first
from kvscope.report.data import ReportedRun, StudyData
from kvscope.report.figures.figure import (
    PAPER,
    SELECTED,
    Drawing,
    Figure,
    Spec,
    View,
    colour_channel,
    number,
    text,
)
from kvscope.report.theme import GREY, NOTE
from kvscope.report.words import number_text, percent
from kvscope_offload.figures.facts import (
    facts_of,
    is_ablated,
    offload_runs,
    policy_of,
)

HARDWARE, RECOMPUTED = "rtx-4090", 0.2  # theirs
LABEL_PX = 190
NEAR = 0.15  # of a published figure: the model explains it

Conditions = tuple[str, int]  # model, prompt tokens
Runs = dict[Conditions, dict[str, ReportedRun]]  # by policy
Gains = dict[Conditions, float]


@dataclass(frozen=True)
class Claim:
    """A published gain; `why_not` says what may lie between it and the model."""

    words: str
    published: float | None
    gains: Callable[[Runs], Gains]
    why_not: str = ""


def _faster(policy: str, base: str) -> Callable[[Runs], Gains]:
    """Throughput under one policy over that under another, where both ran."""

    def gains(runs: Runs) -> Gains:
        pairs = {at: (found.get(policy), found.get(base)) for at, found in runs.items()}
        name = "throughput_tokens_per_s"
        return {
            at: one.number(name).value / other.number(name).value
            for at, (one, other) in pairs.items()
            if one and other
        }

    return gains


def _rebuilt(runs: Runs) -> Gains:
    """Seconds to compute a token's K and V from its id over those from its activation."""
    hybrids = {at: facts_of(found["hybrid"]) for at, found in runs.items() if "hybrid" in found}
    costs = {at: facts["cost"] for at, facts in hybrids.items()}
    return {at: c["recompute"]["slope_s"] / c["rebuild"]["slope_s"] for at, c in costs.items()}


CLAIMS = (
    Claim(
        "hybrid over FlexGen",
        2.19,
        _faster("hybrid", "flexgen"),
        "It depends on how fast FlexGen's host copies pageable memory, which is not published; the "
        "model takes the data file's rate. Over the same placement in pinned memory the gain is "
        "that of the next row.",
    ),
    Claim("hybrid over kv_only", None, _faster("hybrid", "kv_only")),
    Claim(
        "hybrid over act_only",
        1.35,
        _faster("hybrid", "act_only"),
        "Their GPU's products may be faster, or their link slower, than the data file's.",
    ),
    Claim(
        "slowdown by token, share 0.2",
        1.45,
        _faster("kv_only", "token"),
        "It grows with the context; their batch and prompt length are not published.",
    ),
    Claim(
        "rebuild over token recompute",
        1 / (1 - 0.78),
        _rebuilt,
        "Published are 78 % less time. The model counts operations, of which rebuilding takes a "
        "sixth, at one rate; measured, the smaller product reaches less of it.",
    ),
)


def draw(study: StudyData, axes: Sequence[Axes]) -> Drawing | None:
    """A row for each claim: each model and prompt length, their geometric mean, the published."""
    runs = _runs(study, axes)
    found = [(claim, claim.gains(runs)) for claim in CLAIMS]
    found = [(claim, gains) for claim, gains in found if gains]
    if not found or not any("flexgen" in policies for policies in runs.values()):
        return None
    points = pd.DataFrame(row for claim, gains in found for row in _points(claim, gains))
    means = pd.DataFrame(_mean(claim, gains) for claim, gains in found)
    notes = [_verdict(claim, gains) for claim, gains in found if claim.published]
    view = View(_chart(points), {"points": points, "means": means}, note=" ".join(notes))
    return Drawing((view,), (), LABEL_PX)


def _runs(study: StudyData, axes: Sequence[Axes]) -> Runs:
    """The runs in their conditions, at hybrid's own share, by model, prompt tokens and policy."""
    found: Runs = {}
    for run in offload_runs(study, axes, "cost"):
        device = run.settings["device"]
        theirs = (None, RECOMPUTED) if policy_of(run) == "token" else (None,)
        if device.get("hardware") == HARDWARE and device.get("share") in theirs:
            at = (run.settings["model"]["name"], run.settings["workload"]["prompt_tokens"])
            if not is_ablated(run):
                found.setdefault(at, {})[policy_of(run)] = run
    return found


def _points(claim: Claim, gains: Gains) -> Iterator[dict[str, Any]]:
    for (model, prompt), gain in gains.items():
        yield {"claim": claim.words, "model": model, "prompt": prompt, "gain": gain}


def _mean(claim: Claim, gains: Gains) -> dict[str, Any]:
    mean = geometric_mean(gains.values())
    return {"claim": claim.words, "mean": mean, "published": claim.published}


def _verdict(claim: Claim, gains: Gains) -> str:
    """'Hybrid over FlexGen: published 2.19, modeled 3.4 (1.7 to 4.8). Not explained: …'"""
    assert claim.published is not None
    mean, values = geometric_mean(gains.values()), sorted(gains.values())
    low, high = number_text(values[0]), number_text(values[-1])
    span = "" if low == high else f" ({low} to {high})"
    published = number_text(claim.published)
    head = f"{capitalize_first(claim.words)}: published {published}, modeled {number_text(mean)}"
    if abs(mean / claim.published - 1) <= NEAR:
        return f"{head}{span}: explained within {percent(NEAR)}."
    return f"{head}{span}: not explained. {claim.why_not}"


def _chart(points: pd.DataFrame) -> Spec:
    order = [claim.words for claim in CLAIMS]
    y = text("claim", sort=order, title=None, axis={"labelLimit": LABEL_PX})
    scale = {"type": "log", "nice": False, "domainMin": 0.8, "domainMax": 6.5}
    models = list(dict.fromkeys(points["model"]))

    axis = {"values": [1, 1.5, 2, 3, 4, 6]}

    def mark(data: str, shape: Spec, column: str, more: Spec) -> Spec:
        x = {"x": number(column, title="times", scale=scale, axis=axis)}
        return {"data": {"name": data}, "mark": shape, "encoding": x | more}

    prompt = number("prompt", title="prompt tokens")
    tooltip = [text("model"), prompt, number("gain", format=".3~f")]
    mean_tip = [text("claim"), number("mean", format=".3~f"), number("published", format=".3~f")]
    bar = {"type": "tick", "size": 24, "thickness": 2, "color": GREY}
    diamond = {"type": "point", "shape": "diamond", "size": 120, "strokeWidth": 2, "color": NOTE}
    dot = {"type": "point", "filled": True, "size": 34, "opacity": 0.75}
    by_model = {"color": colour_channel(models, "model"), "tooltip": tooltip}
    return {
        "width": PAPER - LABEL_PX - 20,
        "height": {"step": 38},
        "encoding": {"y": y},
        "layer": [
            mark("points", dot, "gain", by_model),
            mark("means", bar, "mean", {"tooltip": mean_tip}),
            mark("means", diamond, "published", {"tooltip": mean_tip}),
        ],
    }


FIGURE = Figure(
    "Beside the published gains",
    "Gains on an RTX 4090: points are modeled, one for each model and prompt length; the bar is "
    "their geometric mean; the diamond is what HybridServe (arXiv 2501.01792) published.",
    draw,
    order=130,
    axes=SELECTED,
)

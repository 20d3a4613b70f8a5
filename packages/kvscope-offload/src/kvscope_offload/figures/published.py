"""Published gains of HybridServe (arXiv 2501.01792), beside those of modeled runs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

import pandas as pd

from kvscope.api.figures import Axes, charts, theme
from kvscope.api.sections import ReportedRun, StudyData
from kvscope.api.wording import wording
from kvscope_offload.figures.facts import (
    facts_of,
    is_ablated,
    offload_runs,
    policy_of,
)

HARDWARE, RECOMPUTED = "rtx-4090", 0.2  # theirs
LABEL_PX = 190
LEAST_AXIS = 0.8
LESS_TIME = 0.78  # "78 % faster activation recomputation compared to token recomputation"

Conditions = tuple[str, int]  # model, prompt tokens
Runs = dict[Conditions, dict[str, ReportedRun]]  # by policy
Gains = dict[Conditions, float]
Verdict = Callable[[float, Gains], str]


@dataclass(frozen=True)
class Claim:
    """Published gain (or None), its modeled counterparts, and the verdict on both.

    `verdict` is a sentence on the published number and the modeled gains.
    """

    words: str
    published: float | None
    gains: Callable[[Runs], Gains]
    verdict: Verdict = lambda published, gains: ""


def _faster(policy: str, base: str) -> Callable[[Runs], Gains]:
    """Throughput under one policy over that under another, where both ran."""
    return _ratio(policy, base, "throughput_tokens_per_s")


def _ratio(policy: str, base: str, metric: str) -> Callable[[Runs], Gains]:
    """A metric under one policy over that under another, where both ran."""

    def gains(runs: Runs) -> Gains:
        pairs = {
            point: (by_policy.get(policy), by_policy.get(base)) for point, by_policy in runs.items()
        }
        return {
            point: gained.number(metric).value / other.number(metric).value
            for point, (gained, other) in pairs.items()
            if gained and other
        }

    return gains


def _rebuilt(runs: Runs) -> Gains:
    """Seconds to compute a token's K and V from its id over those from its activation."""
    hybrids = {
        point: facts_of(by_policy["hybrid"])
        for point, by_policy in runs.items()
        if "hybrid" in by_policy
    }
    costs = {point: facts["cost"] for point, facts in hybrids.items()}
    return {
        point: c["recompute"]["slope_s"] / c["rebuild"]["slope_s"] for point, c in costs.items()
    }


def _smaller(runs: Runs) -> Gains:
    """Bytes of the context as K and V over those as activations, where both are recorded."""
    outcomes = {
        point: by_policy
        for point, by_policy in runs.items()
        if "act_only" in by_policy and by_policy["act_only"].record.engine.input_block_bytes
    }
    return _ratio("kv_only", "act_only", "kv_bytes_peak")(outcomes)


def _unless_outside(unknown: str) -> Verdict:
    """Verdict that a number cannot be refuted where `unknown` conditions move it past the other.

    The modeled gains are those of conditions that kvscope chose, as the published ones are not
    known. A published number among them would take other conditions to be refuted.
    """

    def verdict(published: float, gains: Gains) -> str:
        if min(gains.values()) <= published <= max(gains.values()):
            return f"Cannot be told: {unknown}."
        return f"Differs: no condition that is modeled gives it; {unknown}."

    return verdict


def _of_operations(published: float, gains: Gains) -> str:
    """A measured gain is at most that of the operations, if the smaller product is no faster."""
    share = published / geometric_mean(gains.values())
    if share > 1:
        return "Differs: more than the operations allow at one rate."
    rate = f"{wording.percent(share)} of the rate of a whole layer's products"
    return f"Possible: the product that rebuilds then reaches {rate}."


def _by_sizes(published: float, gains: Gains) -> str:
    """The bytes of a block follow from the model's sizes and the blocks alone."""
    equal = all(abs(gain / published - 1) < 1e-9 for gain in gains.values())
    return "Equal." if equal else "Differs."


CLAIMS = (
    Claim("hybrid over zero_inference", None, _faster("hybrid", "zero_inference")),
    Claim(
        "hybrid over FlexGen",
        2.19,
        _faster("hybrid", "flexgen"),
        _unless_outside(
            "neither their prompt lengths nor how fast FlexGen's host copies pageable memory are "
            "published"
        ),
    ),
    Claim("hybrid over kv_only", None, _faster("hybrid", "kv_only")),
    Claim(
        "hybrid over act_only",
        1.35,
        _faster("hybrid", "act_only"),
        _unless_outside("their prompt lengths are not published"),
    ),
    Claim(
        "slowdown by token, share 0.2",
        1.45,
        _faster("kv_only", "token"),
        _unless_outside("neither their batch nor their prompt length is published"),
    ),
    Claim("rebuild, as 78 % less time", 1 / (1 - LESS_TIME), _rebuilt, _of_operations),
    Claim("rebuild, as 1.78 times the rate", 1 + LESS_TIME, _rebuilt, _of_operations),
    Claim("bytes of K and V over activations", 2.0, _smaller, _by_sizes),
)


def draw(study: StudyData, axes: Sequence[Axes]) -> charts.Drawing | None:
    """A row for each claim: each model and prompt length, their geometric mean, the published."""
    runs = _runs(study, axes)
    claims = [(claim, claim.gains(runs)) for claim in CLAIMS]
    claims = [(claim, gains) for claim, gains in claims if gains]
    if not claims or not any("flexgen" in policies for policies in runs.values()):
        return None
    points = pd.DataFrame(row for claim, gains in claims for row in _points(claim, gains))
    means = pd.DataFrame(_mean(claim, gains) for claim, gains in claims)
    notes = [_sentence(claim, gains) for claim, gains in claims]
    view = charts.View(
        _chart(points, means), {"points": points, "means": means}, note=" ".join(notes)
    )
    return charts.Drawing((view,), (), LABEL_PX)


def _runs(study: StudyData, axes: Sequence[Axes]) -> Runs:
    """The runs in their conditions, at hybrid's own share, by model, prompt tokens and policy."""
    runs: Runs = {}
    for run in offload_runs(study, axes, "cost"):
        device = run.settings["device"]
        theirs = (None, RECOMPUTED) if policy_of(run) == "token" else (None,)
        if device.get("hardware") == HARDWARE and device.get("share") in theirs:
            point = (run.settings["model"]["name"], run.settings["workload"]["prompt_tokens"])
            if not is_ablated(run):
                runs.setdefault(point, {})[policy_of(run)] = run
    return runs


def _points(claim: Claim, gains: Gains) -> Iterator[dict[str, Any]]:
    for (model, prompt), gain in gains.items():
        yield {"claim": claim.words, "model": model, "prompt": prompt, "gain": gain}


def _mean(claim: Claim, gains: Gains) -> dict[str, Any]:
    mean = geometric_mean(gains.values())
    return {"claim": claim.words, "mean": mean, "published": claim.published}


def _sentence(claim: Claim, gains: Gains) -> str:
    """'Hybrid over act_only: published 1.35, modeled 1.43 (1.06 to 2), 1.06 times it. …'"""
    mean, values = geometric_mean(gains.values()), sorted(gains.values())
    low, high = wording.number_text(values[0]), wording.number_text(values[-1])
    modeled = f"modeled {wording.number_text(mean)}{'' if low == high else f' ({low} to {high})'}"
    name = claim.words[:1].upper() + claim.words[1:]
    if claim.published is None:
        return f"{name}: not published, {modeled}."
    head = f"{name}: published {wording.number_text(claim.published)}, {modeled}"
    verdict = claim.verdict(claim.published, gains)
    return f"{head}, {wording.number_text(mean / claim.published)} times it. {verdict}"


def _chart(points: pd.DataFrame, means: pd.DataFrame) -> charts.Spec:
    order = [claim.words for claim in CLAIMS]
    y = charts.text("claim", sort=order, title=None, axis={"labelLimit": LABEL_PX})
    most = max(points["gain"].max(), means["published"].max())
    scale = {"type": "log", "nice": False, "domain": [LEAST_AXIS, 1.1 * most]}
    models = list(dict.fromkeys(points["model"]))

    axis = {"values": [1, 1.5, 2, 3, 4, 6, 10, 15, 20, 30]}

    def mark(data: str, shape: charts.Spec, column: str, more: charts.Spec) -> charts.Spec:
        x = {"x": charts.number(column, title="times", scale=scale, axis=axis)}
        return {"data": {"name": data}, "mark": shape, "encoding": x | more}

    prompt = charts.number("prompt", title="prompt tokens")
    tooltip = [charts.text("model"), prompt, charts.number("gain", format=".3~f")]
    mean_tip = [
        charts.text("claim"),
        charts.number("mean", format=".3~f"),
        charts.number("published", format=".3~f"),
    ]
    bar = {"type": "tick", "size": 24, "thickness": 2, "color": theme.GREY}
    diamond = {
        "type": "point",
        "shape": "diamond",
        "size": 120,
        "strokeWidth": 2,
        "color": theme.NOTE,
    }
    dot = {"type": "point", "filled": True, "size": 34, "opacity": 0.75}
    by_model = {"color": charts.colour_channel(models, "model"), "tooltip": tooltip}
    return {
        "width": charts.PAPER - LABEL_PX - 20,
        "height": {"step": 38},
        "encoding": {"y": y},
        "layer": [
            mark("points", dot, "gain", by_model),
            mark("means", bar, "mean", {"tooltip": mean_tip}),
            mark("means", diamond, "published", {"tooltip": mean_tip}),
        ],
    }


FIGURE = charts.Figure(
    "Beside the published gains",
    "Gains on an RTX 4090: points are modeled, one for each model and prompt length; the bar is "
    "their geometric mean; the diamond is what HybridServe (arXiv 2501.01792) published. Prompt "
    "lengths are chosen here, as theirs are not published.",
    draw,
    order=130,
    axes=charts.SELECTED,
)

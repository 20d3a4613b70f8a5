"""Tokens of prefill and of decode in each forward pass."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from kvscope.plan.figures import Axes
from kvscope.report import theme
from kvscope.report.data import ReportedRun, StudyData
from kvscope.report.figures.figure import NUMBER, Drawing, Figure, Spec, colours, constant, number
from kvscope.report.figures.passes import STEPS, multiples

PREFILL, DECODE = "prefill (prompts and recomputation)", "decode"
SCALE = colours([DECODE, PREFILL], [theme.DECODE, theme.PREFILL])


def draw(study: StudyData, axes: Sequence[Axes]) -> Drawing | None:
    """Stacked tokens of every pass over time, an experiment a facet."""
    return multiples(study, _tokens, token_areas("tokens in the pass", "bottom"))


def token_areas(title: str, legend: str) -> list[Spec]:
    """Tokens of decode, and of prefill above them, from columns `decode` and `tokens`."""
    y = {"title": title, "axis": {"tickCount": 4, "format": NUMBER}}
    look = {"scale": SCALE, "legend": {"orient": legend}}
    return [
        {"mark": {"type": "area", **STEPS}, "encoding": encoding}
        for encoding in (
            {"y": number("decode", **y), "color": constant(DECODE, **look)},
            {
                "y": number("tokens", **y),
                "y2": {"field": "decode"},
                "color": constant(PREFILL, **look),
            },
        )
    ]


def _tokens(run: ReportedRun, steps: pd.DataFrame) -> dict[str, Any]:
    total = steps["decode_tokens"] + steps["prefill_tokens"]
    return {"decode": steps["decode_tokens"].round(1), "tokens": total.round(1)}


FIGURE = Figure(
    "Tokens in each forward pass",
    "The first repeat of each experiment.",
    draw,
    order=160,
)

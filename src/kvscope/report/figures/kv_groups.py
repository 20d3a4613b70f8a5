"""What the KV cache has in use by KV group, in bytes, where a model's groups differ."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from kvscope.kv_plan import BY_CHUNK, BY_WINDOW, STATE
from kvscope.plan.figures import Axes
from kvscope.report.data import ReportedRun, StudyData
from kvscope.report.figures.figure import Drawing, Figure, Spec, colours, constant, number
from kvscope.report.figures.passes import STEPS, multiples, runs_with_passes
from kvscope.report.theme import GREY, PALETTE

FREE = "padding"
PARTS = {
    "of all tokens": PALETTE[0],
    "of a window": PALETTE[4],
    "of a chunk": PALETTE[3],
    "states": PALETTE[2],
    FREE: GREY,
}
"""What blocks hold, from the bottom up, and its colour."""


def part_of(kind: str) -> str:
    """What blocks of a KV group of this kind hold."""
    named = {**dict.fromkeys(BY_WINDOW, "of a window"), **dict.fromkeys(BY_CHUNK, "of a chunk")}
    return (named | {STATE: "states"}).get(kind, "of all tokens")


def draw(study: StudyData, axes: Sequence[Axes]) -> Drawing | None:
    """Bytes in use over time, stacked by what they hold, an experiment a facet.

    None where the KV groups of no model differ.
    """
    runs = runs_with_passes(study)
    if not any(run.steps(run.repeats[0])["group_blocks_used"].notna().any() for run in runs):
        return None
    groups = pd.concat([run.records.kv_groups for run in runs])
    there = {*map(part_of, groups["kind"])}
    there |= {FREE} if (groups["useful_bytes"] < groups["block_bytes"]).any() else set()
    shown = [name for name in PARTS if name in there]
    scale = colours(shown, [PARTS[name] for name in shown])
    y: Spec = {"title": "share of the KV cache (%)", "scale": {"domain": [0, 105]}}
    layers: list[Spec] = [
        {
            "mark": {"type": "area", "opacity": 0.85} | STEPS,
            "encoding": {
                "y": number(f"from {name}", **y),
                "y2": {"field": f"to {name}"},
                "color": constant(name, scale=scale),
            },
        }
        for name in shown
    ]
    return multiples(study, _stacked, layers)


def _stacked(run: ReportedRun, steps: pd.DataFrame) -> dict[str, Any]:
    """Where each part begins and ends, in percent of the cache."""
    groups = run.records.kv_groups
    total_bytes = steps["kv_blocks_total"].max() * run.records.block_bytes
    taken_bytes = steps["kv_blocks_used"].to_numpy(float) * run.records.block_bytes
    held = dict.fromkeys(PARTS, np.zeros(len(steps)))
    for kind, bytes_ in zip(groups["kind"], _group_bytes(run, steps).T, strict=True):
        held[part_of(kind)] = held[part_of(kind)] + bytes_
    held[FREE] = taken_bytes - sum(held.values())
    ends = 100 * np.cumsum(list(held.values()), axis=0) / total_bytes
    begins = np.vstack([np.zeros(len(steps)), ends[:-1]])
    parts = zip(PARTS, begins.round(2), ends.round(2), strict=True)
    return {
        f"{side} {name}": values
        for name, *both in parts
        for side, values in zip(("from", "to"), both, strict=True)
    }


def _group_bytes(run: ReportedRun, steps: pd.DataFrame) -> Any:
    """Bytes without padding of each KV group (a column) in each pass."""
    sizes = run.records.kv_groups["useful_bytes"].to_numpy(float)
    used = steps["kv_blocks_used"]
    if steps["group_blocks_used"].isna().all():
        return np.outer(used, sizes)
    counts = [
        [0] * len(sizes) if idle else list(of)
        for of, idle in zip(steps["group_blocks_used"], used == 0, strict=True)
    ]
    return np.array(counts, float) * sizes


FIGURE = Figure(
    "KV cache in use by KV group",
    "The first repeat of each experiment: bytes of the blocks in use, by what they keep. "
    "Padding is what a block takes beyond its group's contents.",
    draw,
    order=155,
)

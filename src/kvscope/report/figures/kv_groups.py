"""Bytes of the KV cache in use by KV group, where a model's groups differ."""

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd

from kvscope.plan.figures import Axes
from kvscope.report.data import ReportedRun, StudyData
from kvscope.report.figures.figure import Drawing, Figure, Spec, colours, constant, number
from kvscope.report.figures.passes import STEPS, multiples, shown_runs
from kvscope.report.theme import GREY, PALETTE
from kvscope.tables.kv_kinds import (
    CHUNKED_LOCAL,
    FULL,
    MAMBA,
    SLIDING_WINDOW,
    kind_of,
    registered,
)

FREE = "padding"
COLOURS = {
    FULL.contents: PALETTE[0],
    SLIDING_WINDOW.contents: PALETTE[4],
    CHUNKED_LOCAL.contents: PALETTE[3],
    MAMBA.contents: PALETTE[2],
}
OTHER_COLOURS = (PALETTE[1], PALETTE[5], PALETTE[6])
"""Those of kinds that other packages add."""


def parts() -> dict[str, str]:
    """Contents of blocks, from the bottom up, with their colours."""
    added = sorted({kind.contents for kind in registered().values()} - COLOURS.keys())
    return COLOURS | dict(zip(added, cycle(OTHER_COLOURS))) | {FREE: GREY}


def part_of(kind: str) -> str:
    """Contents of the blocks of a KV group of this kind."""
    return kind_of(kind).contents


def draw(study: StudyData, axes: Sequence[Axes]) -> Drawing | None:
    """Bytes in use over time, stacked by what they hold, an experiment a facet.

    None where the KV groups of no model differ.
    """
    runs = shown_runs(study)
    if not any(run.steps(run.repeats[0])["group_blocks_used"].notna().any() for run in runs):
        return None
    groups = pd.concat([run.records.kv_groups for run in runs])
    used = {*map(part_of, groups["kind"])}
    used |= {FREE} if (groups["useful_bytes"] < groups["block_bytes"]).any() else set()
    colour_of = parts()
    shown = [name for name in colour_of if name in used]
    scale = colours(shown, [colour_of[name] for name in shown])
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
    """Begin and end of each part, in percent of the cache."""
    groups = run.records.kv_groups
    total_bytes = steps["kv_blocks_total"].max() * run.records.block_bytes
    taken_bytes = steps["kv_blocks_used"].to_numpy(float) * run.records.block_bytes
    bytes_of = dict.fromkeys(parts(), np.zeros(len(steps)))
    for kind, bytes_ in zip(groups["kind"], _group_bytes(run, steps).T, strict=True):
        bytes_of[part_of(kind)] = bytes_of[part_of(kind)] + bytes_
    bytes_of[FREE] = taken_bytes - sum(bytes_of.values())
    ends = 100 * np.cumsum(list(bytes_of.values()), axis=0) / total_bytes
    begins = np.vstack([np.zeros(len(steps)), ends[:-1]])
    columns = zip(bytes_of, begins.round(2), ends.round(2), strict=True)
    return {
        f"{side} {name}": values
        for name, *both in columns
        for side, values in zip(("from", "to"), both, strict=True)
    }


def _group_bytes(run: ReportedRun, steps: pd.DataFrame) -> Any:
    """Bytes without padding of each KV group (a column) in each pass."""
    sizes = run.records.kv_groups["useful_bytes"].to_numpy(float)
    used = steps["kv_blocks_used"]
    if steps["group_blocks_used"].isna().all():
        return np.outer(used, sizes)
    counts = [
        [0] * len(sizes) if idle else list(blocks)
        for blocks, idle in zip(steps["group_blocks_used"], used == 0, strict=True)
    ]
    return np.array(counts, float) * sizes


FIGURE = Figure(
    "KV cache in use by KV group",
    "The first repeat of each experiment: bytes of the blocks in use, by what they keep. "
    "Padding is what a block takes beyond its group's contents.",
    draw,
    order=155,
)

"""Single accesses of attention kernels to blocks of the KV cache, as charts draw them."""

import json
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from kvscope.api.figures import charts
from kvscope.api.sections import ReportedRun, StudyData
from kvscope.api.words import quantities
from kvscope_kernels import kv_events
from kvscope_kernels.analyse.access import KvTrace, trace_to_draw
from kvscope_kernels.analyse.events import Events

MICROSECOND = 1e-3
GAP = 0.03  # between requests, of all blocks
APART = 0.05  # of the axis: requests named along it
PALE = 0.45  # V beside K
MOST_NAMES = 12  # requests in a legend
OUTLINE_PX = 1.3  # without it, a thin lane could not be seen
LANE = 0.9  # of a block's height
KIND_WORDS = [f"{name[0].upper()} {name[2:]}" for name in kv_events.KINDS]


@dataclass(frozen=True)
class Stack:
    """Stack of the requests' blocks: the first row of each request, and its number of blocks."""

    names: tuple[str, ...]
    first: npt.NDArray[np.float64]
    blocks: npt.NDArray[np.int64]

    @property
    def top(self) -> float:
        """End of the axis of blocks, above the highest block."""
        return float((self.first + self.blocks).max())

    @cached_property
    def order(self) -> list[int]:
        """The requests by their numbers."""
        return sorted(range(len(self.names)), key=lambda n: _number(self.names[n]))

    def labels(self) -> dict[float, str]:
        """The requests' names by the middle of their blocks; those too close to another lack."""
        labels: dict[float, str] = {}
        for n in self.order:
            middle = round(float(self.first[n] + self.blocks[n] / 2), 3)
            if not labels or middle - max(labels) > APART * self.top:
                labels[middle] = (
                    f"request {self.names[n]}: {quantities.plural(int(self.blocks[n]), 'block')}"
                )
        return labels


def stack_of(events: Events) -> Stack:
    """The requests of these events in the order of their numbers, with the blocks they reach."""
    names = sorted(range(len(events.requests)), key=lambda n: _number(events.requests[n]))
    blocks = np.zeros(len(names), np.int64)
    named = events.request >= 0
    np.maximum.at(blocks, events.request[named], events.block_position[named].astype(np.int64) + 1)
    first = np.zeros(len(names))
    first[names] = np.cumsum([0.0, *(blocks[names][:-1] + max(1.0, GAP * blocks.sum()))])
    return Stack(events.requests, first, blocks)


def traced_runs(study: StudyData) -> list[tuple[ReportedRun, KvTrace]]:
    """The complete experiments that have KV events, each with those of its first repeat."""
    runs = [(run, trace_to_draw(run)) for run in study.complete if run.repeats]
    return [(run, trace.of_repeat(run.repeats[0])) for run, trace in runs if trace]


def access_table(events: Events, origin_ns: int) -> pd.DataFrame:
    """Rows of accesses: `start` in µs since `origin_ns`, duration `ns`, and their properties.

    `low` is where it stands within its block's height: K in the upper half, V in the lower, the
    heads of each above one another.
    """
    events = events.take(events.request >= 0)
    heads = np.unique(events.kv_head)
    is_v = events.kind % 2
    lane = np.searchsorted(heads, events.kv_head) + is_v * len(heads)
    low = 1 - (1 - LANE) / 2 - lane_height(events) * (lane + 1)
    return pd.DataFrame(
        {
            "start": ((events.start_ns - origin_ns) * MICROSECOND).round(3),
            "ns": events.end_ns - events.start_ns,
            "request": np.array(events.requests)[events.request],
            "kind": events.kind,
            "low": low.round(3),
            "head": events.kv_head,
            "block": events.block,
            "position": events.block_position,
            "offset": events.offset_tokens,
            "tokens": events.tokens,
            "worker": events.worker,
        }
    )


def lane_height(events: Events) -> float:
    """The height of an access, of a block's."""
    return LANE / (2 * max(1, len(np.unique(events.kv_head))))


TOOLTIP = [
    charts.text("access"),
    charts.text("request"),
    charts.number("position", title="block of the request"),
    charts.number("block", title="block of the cache"),
    charts.number("head", title="KV head"),
    charts.number("offset", title="first token in the block"),
    charts.number("tokens"),
    charts.number("start", title="start (µs)", format=",.3f"),
    charts.number("ns", title="duration (ns)", format=","),
    charts.number("worker"),
]


def access_chart(
    stack: Stack,
    height: float,
    x: charts.Spec,
    y: charts.Spec,
    physical: bool = False,
    shortest_us: float = 0.0,
) -> charts.Spec:
    """A bar an access, by block of the request or, if `physical`, by block of the cache.

    An access shorter than `shortest_us` is drawn that long.
    """
    requests = [stack.names[n] for n in stack.order]
    first = json.dumps({stack.names[n]: float(stack.first[n]) for n in stack.order})
    block = "datum.block" if physical else f"{first}[datum.request] + datum.position"
    span = {"zero": False} if physical else {"domain": [-0.5, stack.top + 0.5], "nice": False}
    calculated = {
        "end": f"datum.start + max(datum.ns / 1000, {shortest_us})",
        "bottom": f"{block} + datum.low",
        "top": f"datum.bottom + {height:.4f}",
        "access": f"{json.dumps(KIND_WORDS)}[datum.kind]",
    }
    legend = {"columns": 6, "labelExpr": "'request ' + datum.label"}
    shown = legend if len(requests) <= MOST_NAMES else None
    return {
        "transform": [{"calculate": how, "as": name} for name, how in calculated.items()],
        "mark": {"type": "rect", "clip": True, "strokeWidth": OUTLINE_PX},
        "encoding": {
            "x": charts.number("start", **x),
            "x2": {"field": "end"},
            "y": charts.number("bottom", scale=span, **y),
            "y2": {"field": "top"},
            "color": charts.text("request", scale=charts.colours(requests), legend=shown),
            "stroke": charts.text("request", scale=charts.colours(requests), legend=None),
            "opacity": {"condition": {"test": "datum.kind % 2 == 0", "value": 1}, "value": PALE},
            "tooltip": TOOLTIP,
        },
    }


def request_axis(stack: Stack) -> charts.Spec:
    """An axis that names the requests at the middle of their blocks."""
    labels = stack.labels()
    words = json.dumps({f"{middle:.3f}": name for middle, name in labels.items()})
    expression = f"{words}[format(datum.value, '.3f')]"
    return {"values": list(labels), "labelExpr": expression, "grid": False}


def clock_note(run: ReportedRun) -> str:
    """Note on the unit of time: that of published device clocks is not certain."""
    published = run.record.imported_from
    return ", as published; the rate of the device's clock is not certain" if published else ""


def _number(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isdecimal() else (-1, name)

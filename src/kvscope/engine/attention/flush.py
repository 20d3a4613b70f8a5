"""What the kernels of one layer recorded, as a line of `kernel_events.jsonl.zst` has it."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvscope.events import ALL_HEADS, COLUMNS, RECORD_ALL_HEADS

Column = npt.NDArray[Any]


class Launch(NamedTuple):
    """What one launch of a kernel recorded; instants in ticks of the tracer's clock.

    `segments` has columns with a row a segment: `events` and `dropped`, their numbers; on a GPU
    also the processor, and start and end by its clock (`…_clock`) and the timer (`…_timer`).
    """

    kernel: str  # of events.KERNELS
    layer: int
    start_ticks: int
    end_ticks: int
    segments: dict[str, Column]
    events: Column  # events.RECORD, segment after segment


def build_flush(launches: Sequence[Launch]) -> dict[str, Any]:
    """The kernels, segments and events of a layer's launches (docs/TRACE_SPEC.md).

    Launches of one kernel in a row, for decoding and for prefilling requests, are one kernel.
    Instants of the clock count from `origin_ticks`, the first kernel's start. So do events, unless
    processors have clocks of their own, with which they stamp events.
    """
    kernels = [list(group) for _, group in groupby(launches, key=lambda launch: launch.kernel)]
    origin = min(launch.start_ticks for launch in launches)
    segments = {
        name: np.concatenate([launch.segments[name] for launch in launches])
        for name in launches[0].segments
    }
    counts = [sum(len(launch.segments["events"]) for launch in group) for group in kernels]
    events = np.concatenate([launch.events for launch in launches])
    return {
        "other_layers": int((events["layer"] != launches[0].layer).sum()),
        "origin_ticks": origin,
        "kernels": [
            {
                "kernel": group[0].kernel,
                "start_ticks": min(launch.start_ticks for launch in group) - origin,
                "end_ticks": max(launch.end_ticks for launch in group) - origin,
            }
            for group in kernels
        ],
        "segments": {
            "kernel": np.repeat(np.arange(len(kernels)), counts),
            "worker": np.concatenate([np.arange(count) for count in counts]),
            **{
                name: column - origin if name.endswith("_timer") else column
                for name, column in segments.items()
            },
        },
        "events": event_columns(events, 0 if "start_clock" in segments else origin),
    }


def event_columns(events: Column, origin: int) -> dict[str, Column]:
    """The fields of records as arrays by themselves, which orjson can write; starts after `origin`.

    What touches all KV heads has the head ALL_HEADS.
    """
    found = {name: np.ascontiguousarray(events[name]) for name in COLUMNS}
    heads = found["kv_head"].astype(np.int32)
    found["kv_head"] = np.where(heads == RECORD_ALL_HEADS, ALL_HEADS, heads)
    found["start_ticks"] = found["start_ticks"].astype(np.int64) - origin
    return found

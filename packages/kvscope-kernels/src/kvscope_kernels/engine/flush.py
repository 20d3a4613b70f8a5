"""A flush: the records of one layer's kernels, as one line of `kernel_events.jsonl.zst`."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvscope_kernels.kv_events import encode_records

Column = npt.NDArray[Any]


class Launch(NamedTuple):
    """The records of one kernel launch; instants in ticks of the tracer's clock.

    `segments` has columns with one row per segment: the numbers of `events` and `dropped` events;
    on a GPU also the processor, and start and end by its clock (`…_clock`) and by the timer
    (`…_timer`).
    """

    kernel: str  # of events.KERNELS
    layer: int
    start_ticks: int
    end_ticks: int
    segments: dict[str, Column]
    events: Column  # events.RECORD, segment after segment


def build_flush(launches: Sequence[Launch]) -> dict[str, Any]:
    """Make the kernels, segments and records of a flush from a layer's launches.

    docs/KV_EVENTS.md defines the keys. Consecutive launches of one kernel, for decoding and for
    prefilling requests, count as one kernel. Instants are relative to `origin_ticks`, the first
    kernel's start; events are too, unless they are stamped with the clocks of the processors.
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
        "records": encode_records(events, 0 if "start_clock" in segments else origin),
    }

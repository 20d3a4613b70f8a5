"""What the launches of one layer recorded, as `kernel_events.jsonl.zst` has it (TRACE_SPEC.md)."""

from itertools import groupby
from typing import Any

import numpy as np

from kvscope.engine.attention.cuda.buffer import Launch
from kvscope.engine.attention.flush import columns, plain


def of_launches(launches: list[Launch]) -> dict[str, Any]:
    """The kernels, segments and events of a layer's launches.

    Instants of the device's timer count from `origin_ticks`, the least of them. Events, and the
    clocks of their segments, are in ticks of the SM's own clock. A kernel that was launched for
    decoding and for prefilling requests is one kernel. Launches without a segment are left out.
    """
    launches = [launch for launch in launches if len(launch.segments)]
    kernels = [list(group) for _, group in groupby(launches, key=lambda launch: launch.kernel)]
    segments = np.concatenate([launch.segments for launch in launches])
    events = np.concatenate([launch.events for launch in launches])
    origin = int(segments["start_timer"].min())
    counts = [sum(len(launch.segments) for launch in group) for group in kernels]

    def instant(field: str, choose: Any, group: list[Launch]) -> int:
        return int(choose([choose(launch.segments[field]) for launch in group])) - origin

    return {
        "other_layers": int((events["layer"] != launches[0].layer).sum()),
        "origin_ticks": origin,
        "kernels": [
            {
                "kernel": group[0].kernel,
                "start_ticks": instant("start_timer", np.min, group),
                "end_ticks": instant("end_timer", np.max, group),
            }
            for group in kernels
        ],
        "segments": {
            "kernel": np.repeat(np.arange(len(kernels)), counts),
            "worker": np.concatenate([np.arange(count) for count in counts]),
            **{name: plain(segments[name]) for name in ("events", "dropped", "sm")},
            **{name: plain(segments[name]) for name in ("start_clock", "end_clock")},
            **{name: segments[name] - origin for name in ("start_timer", "end_timer")},
        },
        "events": columns(events),
    }

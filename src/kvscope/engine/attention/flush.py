"""What the kernels of one layer recorded on a CPU, as `kernel_events.jsonl.zst` has it."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvscope.events import ALL_HEADS, RECORD_ALL_HEADS

Events = npt.NDArray[Any]
Counts = npt.NDArray[np.int64]


class Part(NamedTuple):
    """One kernel's events by worker, and how many each worker dropped."""

    kernel: Any  # tracer.TracedKernel
    events: list[Events]
    dropped: Counts


def cut(segments: list[Events], first: Counts, last: Counts) -> list[Events]:
    """The events of each segment from `first` on, before `last`."""
    return [events[a:b] for events, a, b in zip(segments, first, last, strict=True)]


def of_kernels(parts: list[Part]) -> dict[str, Any]:
    """What the kernels of one layer recorded; instants count from the first kernel's start."""
    origin = parts[0].kernel.start_ticks
    workers = range(len(parts[0].events))
    events = np.concatenate([events for part in parts for events in part.events])
    return {
        "other_layers": int((events["layer"] != parts[0].kernel.layer).sum()),
        "origin_ticks": origin,
        "kernels": [
            {
                "kernel": part.kernel.kernel,
                "start_ticks": part.kernel.start_ticks - origin,
                "end_ticks": part.kernel.end_ticks - origin,
            }
            for part in parts
        ],
        "segments": {
            "kernel": [number for number in range(len(parts)) for _ in workers],
            "worker": [worker for _ in parts for worker in workers],
            "events": [len(events) for part in parts for events in part.events],
            "dropped": [int(count) for part in parts for count in part.dropped],
        },
        "events": columns(events, origin),
    }


def columns(events: Events, origin: int = 0) -> dict[str, Events]:
    """The records' fields as arrays, starts counted from `origin`."""
    heads = events["kv_head"].astype(np.int32)
    return {
        "kind": plain(events["kind"]),
        "row": plain(events["row"]),
        "kv_head": np.where(heads == RECORD_ALL_HEADS, ALL_HEADS, heads),
        "block": plain(events["block"]),
        "block_position": plain(events["block_position"]),
        "offset_tokens": plain(events["offset_tokens"]),
        "tokens": plain(events["tokens"]),
        "start_ticks": events["start_ticks"].astype(np.int64) - origin,
        "duration_ticks": plain(events["duration_ticks"]),
    }


def plain(column: Events) -> Events:
    """A field of records as an array by itself, which orjson can write."""
    return np.ascontiguousarray(column)

"""Times at which each lane was busy, by operation."""

from collections.abc import Sequence
from itertools import dropwhile, takewhile
from typing import Any, NamedTuple

from kvscope_offload.pipeline import Job


class Interval(NamedTuple):
    """One job of one lane, in seconds of the lane's clock."""

    lane: str
    name: str
    step: int
    layer: int
    minibatch: int
    bytes: int
    start_s: float
    end_s: float

    @classmethod
    def of(cls, job: Job, lane: str, start_s: float, end_s: float) -> "Interval":
        """A job that took from one instant to another."""
        return cls(lane, job.name, job.step, job.layer, job.minibatch, job.bytes, start_s, end_s)


def one_step(intervals: Sequence[Interval], step: int, layers: int) -> list[dict[str, Any]]:
    """Spans of the lanes during the first layers of a pass, in seconds since its start.

    Of several batches, which each number their passes from 0, the first that has the pass.
    """
    device = sorted((i for i in intervals if i.lane == "device"), key=lambda i: i.start_s)
    of_step = takewhile(lambda i: i.step == step, dropwhile(lambda i: i.step != step, device))
    first = [i for i in of_step if i.layer < layers and i.name != "end"]
    if not first:
        return []
    begin_s, end_s = first[0].start_s, first[-1].end_s
    return [
        {
            "lane": i.lane,
            "job": i.name,
            "layer": i.layer,
            "minibatch": i.minibatch,
            "start_s": max(0.0, i.start_s - begin_s),
            "end_s": min(i.end_s, end_s) - begin_s,
        }
        for i in intervals
        if i.end_s > begin_s and i.start_s < end_s and i.name not in ("begin", "end")
    ]

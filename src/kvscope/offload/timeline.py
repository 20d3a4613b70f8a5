"""When each lane did what."""

from typing import NamedTuple

from kvscope.offload.pipeline import Job


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

"""Simulation of the schedule with the seconds of a cost model in place of work."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from kvscope_offload.amounts import compute_s, loaded_bytes, stored_bytes
from kvscope_offload.cost import CostModel
from kvscope_offload.pipeline import Job, Lanes, Pass, run
from kvscope_offload.policy import OffloadPolicy
from kvscope_offload.timeline import Interval

LANES = ("link", "device", "back")


class SimulatedLane:
    """A lane whose clock is moved by its jobs and by the marks that it waits for."""

    def __init__(self, name: str, intervals: list[Interval]) -> None:
        self.name, self.now_s, self.intervals, self.recorded = name, 0.0, intervals, True

    def submit(self, job: Job) -> None:
        """Let the job's seconds pass."""
        start_s, self.now_s = self.now_s, self.now_s + job.seconds
        if self.recorded:
            self.intervals.append(Interval.of(job, self.name, start_s, self.now_s))

    def record(self) -> float:
        """The time at which all so far is done."""
        return self.now_s

    def wait(self, mark: float) -> None:
        """Go on no earlier than the mark."""
        self.now_s = max(self.now_s, mark)

    def join(self) -> None:
        """Do nothing: the caller has no clock of its own."""


class SimulatedLanes(Lanes):
    """Three lanes that meet when they are joined."""

    def __init__(self) -> None:
        self.intervals: list[Interval] = []
        super().__init__(*(SimulatedLane(name, self.intervals) for name in LANES))

    def join(self) -> None:
        """All go on from the latest."""
        lanes = (self.link, self.device, self.back)
        latest = max(lane.now_s for lane in lanes)
        for lane in lanes:
            lane.wait(latest)

    def stop_recording(self) -> None:
        """Keep the intervals so far, and none of what follows."""
        for lane in (self.link, self.device, self.back):
            lane.recorded = False


class Batch(Protocol):
    """Input of a simulation: the passes of a batch of requests under a policy."""

    policy: OffloadPolicy
    cost: CostModel
    layers: int

    def passes(self) -> Iterable[Pass]:
        """The passes, in order."""


@dataclass
class Excerpt:
    """Some passes of a batch."""

    policy: OffloadPolicy
    cost: CostModel
    layers: int
    chosen: list[Pass]

    def passes(self) -> Iterable[Pass]:
        """The passes of the excerpt."""
        return self.chosen


class Amounts(NamedTuple):
    """Bytes and seconds of a mini-batch of a pass in each layer, equal in all layers."""

    loaded_bytes: int
    compute_s: float
    stored_bytes: int


class CostWork:
    """The jobs of a schedule as seconds of a cost model."""

    def __init__(self, batch: Batch) -> None:
        self.cost, self.layers = batch.cost, batch.layers
        self.streamed, self.pinned = batch.policy.streamed, batch.policy.pinned
        self._amounts: dict[tuple[int, int], Amounts] = {}

    def weights(self, layer: int, buffer: int, part: int, parts: int) -> Job | None:
        """A part of a layer's weights."""
        if not self.streamed:
            return None
        size = self.cost.sizes.weight_bytes / parts
        return Job("weights", seconds=self.cost.link(size), bytes=int(size), layer=layer)

    def begin(self, step: Pass) -> Job:
        """Embedding is not counted."""
        return Job("begin", step=step.number)

    def end(self, step: Pass) -> Job:
        """Sampling is not counted."""
        return Job("end", step=step.number)

    def load(self, step: Pass, layer: int, minibatch: int, slot: int) -> Job | None:
        """Bytes of the context on the host; pageable memory is first copied by the host."""
        size = self._of(step, minibatch).loaded_bytes
        if not size:
            return None
        seconds = self.cost.link(size) + (0.0 if self.pinned else self.cost.relay(size))
        return Job("load", seconds=seconds, bytes=size, **_place(step, layer, minibatch))

    def compute(self, step: Pass, layer: int, minibatch: int, slot: int, buffer: int) -> Job:
        """Rebuild, recompute, attend, and the layer's products."""
        seconds = self._of(step, minibatch).compute_s
        return Job("compute", seconds=seconds, **_place(step, layer, minibatch))

    def store(self, step: Pass, layer: int, minibatch: int) -> Job | None:
        """The new tokens' rows; the way back is as fast as the link."""
        size = self._of(step, minibatch).stored_bytes
        if not size:
            return None
        seconds = self.cost.link(size)
        return Job("store", seconds=seconds, bytes=size, **_place(step, layer, minibatch))

    def _of(self, step: Pass, minibatch: int) -> Amounts:
        key = step.number, minibatch
        if key not in self._amounts:
            batch, sizes = step.minibatches[minibatch], self.cost.sizes
            self._amounts[key] = Amounts(
                loaded_bytes(sizes, batch), compute_s(self.cost, batch), stored_bytes(sizes, batch)
            )
        return self._amounts[key]


def _place(step: Pass, layer: int, minibatch: int) -> dict[str, Any]:
    return {"layer": layer, "minibatch": minibatch, "step": step.number}


@dataclass(frozen=True)
class Simulated:
    """Result of a simulation: the passes, the end of each, and the spans of each lane."""

    passes: list[Pass]
    ends_s: list[float]
    intervals: list[Interval]

    @property
    def step_s(self) -> float:
        """Seconds of a pass of decoding, mean over those with decoding before and after them."""
        if len(self.ends_s) < 4:
            raise ValueError(f"{len(self.ends_s)} passes have none between two of decoding")
        return (self.ends_s[-2] - self.ends_s[1]) / (len(self.ends_s) - 3)


def simulate(batch: Batch, recorded_passes: int | None = None) -> Simulated:
    """Run a batch's passes on the clock of its cost model.

    `recorded_passes` are the first passes whose intervals are kept; None is all.
    """
    lanes = SimulatedLanes()
    simulated = Simulated([], [], lanes.intervals)
    work = CostWork(batch)
    for step in run(batch.passes(), work, lanes, batch.policy.schedule):
        simulated.passes.append(step)
        simulated.ends_s.append(lanes.device.now_s)
        if len(simulated.passes) == recorded_passes:
            lanes.stop_recording()
    return simulated

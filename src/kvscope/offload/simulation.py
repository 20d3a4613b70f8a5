"""The same schedule with the seconds of a cost model in place of work."""

from dataclasses import dataclass

from kvscope.offload.cost import CostModel
from kvscope.offload.generation import Generation, compute_s, loaded_bytes, stored_bytes
from kvscope.offload.pipeline import Job, Lanes, Pass, run
from kvscope.offload.timeline import Interval


class SimulatedLane:
    """A lane whose clock is moved by its jobs and by the marks that it waits for."""

    def __init__(self, name: str, intervals: list[Interval]) -> None:
        self.name, self.now_s, self.intervals = name, 0.0, intervals

    def submit(self, job: Job) -> None:
        """Let the job's seconds pass."""
        start_s, self.now_s = self.now_s, self.now_s + job.seconds
        self.intervals.append(Interval.of(job, self.name, start_s, self.now_s))

    def record(self) -> float:
        """The time at which all so far is done."""
        return self.now_s

    def wait(self, mark: float) -> None:
        """Go on no earlier than the mark."""
        self.now_s = max(self.now_s, mark)

    def join(self) -> None:
        """The caller waits: it has no clock of its own."""


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


LANES = ("link", "device", "back")


@dataclass
class CostWork:
    """The jobs of a schedule as seconds of a cost model."""

    generation: Generation
    cost: CostModel
    layers: int
    pageable_bytes_per_s: float | None = None  # of the host's copy to a pinned buffer first

    def weights(self, layer: int, buffer: int, part: int, parts: int) -> Job | None:
        """A part of a layer's weights."""
        if not self.generation.policy.streamed:
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
        """What the host keeps of the context."""
        size = loaded_bytes(self.cost.sizes, step.minibatches[minibatch])
        if not size:
            return None
        seconds = self.cost.link(size)
        if self.pageable_bytes_per_s and not self.generation.policy.pinned:
            seconds += size / self.pageable_bytes_per_s
        return Job(
            "load", seconds=seconds, bytes=size, layer=layer, minibatch=minibatch, step=step.number
        )

    def compute(self, step: Pass, layer: int, minibatch: int, slot: int, buffer: int) -> Job:
        """Rebuild, recompute, attend, and the layer's products."""
        seconds = compute_s(self.cost, step.minibatches[minibatch])
        return Job("compute", seconds=seconds, layer=layer, minibatch=minibatch, step=step.number)

    def store(self, step: Pass, layer: int, minibatch: int) -> Job | None:
        """The new tokens' rows; the way back is as fast as the link."""
        size = stored_bytes(self.cost.sizes, step.minibatches[minibatch])
        if not size:
            return None
        return Job(
            "store",
            seconds=self.cost.link(size),
            bytes=size,
            layer=layer,
            minibatch=minibatch,
            step=step.number,
        )


@dataclass(frozen=True)
class Simulated:
    """What a simulation gives: the end of each pass, and what each lane did when."""

    ends_s: list[float]
    intervals: list[Interval]

    @property
    def step_s(self) -> float:
        """Seconds of a pass of decoding, mean over those with decoding before and after them."""
        if len(self.ends_s) < 4:
            raise ValueError(f"{len(self.ends_s)} passes have none between two of decoding")
        return (self.ends_s[-2] - self.ends_s[1]) / (len(self.ends_s) - 3)


def simulate(generation: Generation, pageable_bytes_per_s: float | None = None) -> Simulated:
    """Run a generation's passes on the clock of its cost model."""
    lanes = SimulatedLanes()
    work = CostWork(generation, generation.cost, generation.layers, pageable_bytes_per_s)
    passes = run(generation.passes(), work, lanes, generation.policy.schedule)
    return Simulated([lanes.device.now_s for _ in passes], lanes.intervals)

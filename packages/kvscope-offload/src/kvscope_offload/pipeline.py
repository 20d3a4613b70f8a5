"""The schedule of a step: what the link, the device and the way back do, and who waits for whom.

For each layer and mini-batch the link loads what the host keeps of its context, the device
computes, and the rows of the new tokens are stored. While a mini-batch is computed the next one is
loaded, and between those loads the next layer's weights come in parts, one a mini-batch. Nothing
waits but for marks: a load for a free buffer and for what the pass before stored of its layer, a
product for its load and its weights, a store for its rows.

The lanes decide what a job is: work on tensors, or seconds of a cost model (`simulation`).
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, Protocol

from kvscope_offload.blocks import Minibatch, Row


@dataclass(frozen=True)
class Job:
    """Work of one lane. A lane runs it, or takes its seconds; `bytes` cross the link."""

    name: str  # weights, load, compute, store, begin, end
    run: Callable[[], None] = lambda: None
    seconds: float = 0.0
    bytes: int = 0
    layer: int = -1
    minibatch: int = -1
    step: int = -1


@dataclass
class Lanes:
    """The three lanes: host to device, the device's kernels, device to host."""

    link: Any
    device: Any
    back: Any

    def join(self) -> None:
        """The caller goes on when all lanes are done."""
        for lane in (self.link, self.device, self.back):
            lane.join()


@dataclass
class Pass:
    """A forward pass over the prompts of its mini-batches' requests, or their newest tokens."""

    number: int
    prefill: bool
    minibatches: list[Minibatch]

    @property
    def rows(self) -> list[Row]:
        """All requests of the pass."""
        return [row for minibatch in self.minibatches for row in minibatch.rows]


class Work(Protocol):
    """Jobs of a schedule; None where there is nothing to do."""

    layers: int

    def weights(self, layer: int, buffer: int, part: int, parts: int) -> Job | None:
        """One part of a layer's weights, into one of two buffers."""

    def begin(self, step: Pass) -> Job:
        """Embed the tokens of a pass."""

    def load(self, step: Pass, layer: int, minibatch: int, slot: int) -> Job | None:
        """Load what the host keeps of a mini-batch's context into a staging buffer."""

    def compute(self, step: Pass, layer: int, minibatch: int, slot: int, buffer: int) -> Job:
        """One layer of one mini-batch."""

    def store(self, step: Pass, layer: int, minibatch: int) -> Job | None:
        """Store the new tokens' rows in the host's blocks."""

    def end(self, step: Pass) -> Job:
        """Sample the next tokens."""


@dataclass(frozen=True)
class Style:
    """Overlap of the schedule.

    `buffers` are those of mini-batches in flight; `spread_weights`: a layer's weights come in
    parts, between the loads of the mini-batches before, else in one piece ahead of them;
    `synchronous`: all lanes wait for each other after each mini-batch of a layer.
    """

    buffers: int = 2
    spread_weights: bool = True
    synchronous: bool = False


@dataclass(frozen=True)
class _Task:
    step: Pass
    layer: int
    minibatch: int
    visit: int  # layers visited before, over all passes
    more: bool  # another layer follows, in this pass or the next

    @property
    def last_of_layer(self) -> bool:
        return self.minibatch == len(self.step.minibatches) - 1


def run(passes: Iterable[Pass], work: Work, lanes: Lanes, style: Style) -> Iterator[Pass]:
    """Run passes one after another; each is yielded when its tokens are sampled."""
    link, device, back = lanes.link, lanes.device, lanes.back
    upcoming = _tasks(passes, work.layers)
    slot_free = [device.record() for _ in range(style.buffers)]
    weights_ready = [link.record(), link.record()]
    buffer_free = [device.record(), device.record()]
    stored = [back.record() for _ in range(work.layers)]
    loaded: deque[tuple[_Task, int, Any]] = deque()
    slots = computed = 0  # loads, and layers whose stores are submitted, over all passes
    following: _Task | None = None

    def load_ahead() -> None:
        nonlocal slots, following
        while len(loaded) < style.buffers:
            following = following or next(upcoming, None)
            # What the pass before stores of this layer is to be among what is loaded.
            if following is None or following.visit >= computed + work.layers:
                return
            task, following = following, None
            slot = slots % style.buffers
            slots += 1
            job = work.load(task.step, task.layer, task.minibatch, slot)
            ready = slot_free[slot]  # with nothing to load, the buffer has to be free
            if job is not None:
                link.wait(ready)
                link.wait(stored[task.layer])
                link.submit(job)
                ready = link.record()
            loaded.append((task, slot, ready))

    def load_weights(layer: int, visit: int, parts: range, of: int) -> None:
        buffer = visit % 2
        for part in parts:
            job = work.weights(layer, buffer, part, of)
            if job is None:
                return
            link.wait(buffer_free[buffer])
            link.submit(job)
        weights_ready[buffer] = link.record()

    load_weights(0, 0, range(1), 1)
    load_ahead()
    while loaded:
        task, slot, ready = loaded.popleft()
        step, layer, buffer = task.step, task.layer, task.visit % 2
        if not layer and not task.minibatch:
            device.submit(work.begin(step))
        if not style.spread_weights and task.more and not task.minibatch:
            load_weights((layer + 1) % work.layers, task.visit + 1, range(1), 1)
        device.wait(ready)
        device.wait(weights_ready[buffer])
        device.submit(work.compute(step, layer, task.minibatch, slot, buffer))
        slot_free[slot] = device.record()
        job = work.store(step, layer, task.minibatch)
        if job is not None:
            back.wait(slot_free[slot])
            back.submit(job)
        if style.spread_weights and task.more:
            count = len(step.minibatches)
            part = range(task.minibatch, task.minibatch + 1)
            load_weights((layer + 1) % work.layers, task.visit + 1, part, count)
        if task.last_of_layer:
            buffer_free[buffer] = device.record()
            # Not before: loads of this pass wait for what the pass before has stored, no more.
            stored[layer] = back.record()
            computed += 1
        if style.synchronous:
            lanes.join()
        load_ahead()
        if task.last_of_layer and layer == work.layers - 1:
            device.submit(work.end(step))
            device.join()
            yield step
    lanes.join()


def _tasks(passes: Iterable[Pass], layers: int) -> Iterator[_Task]:
    visit = 0
    for step, after in pairwise(chain(passes, [None])):
        assert step is not None
        for layer in range(layers):
            more = after is not None or layer < layers - 1
            for minibatch in range(len(step.minibatches)):
                yield _Task(step, layer, minibatch, visit, more)
            visit += 1

"""Tracing of a modeled engine: events are made of the passes that its executor is given."""

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from kvscope.api.engines import VirtualClock
from kvscope.api.experiments import Experiment
from kvscope_kernels import kv_events
from kvscope_kernels.engine import clock as ticks
from kvscope_kernels.engine import flush, tracer
from kvscope_model.engine.accesses import TILE_TOKENS, Accesses, Row, reads, writes
from kvscope_model.engine.cost import Cost
from kvscope_model.hardware.cost import LayerCost

NANOSECONDS = 1e9  # a second


class VirtualTicks(ticks.TickClock):
    """The virtual clock, whose ticks are nanoseconds."""

    name: ClassVar[str] = kv_events.VIRTUAL_CLOCK

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock

    def read(self) -> int:
        """The clock now."""
        return self.clock.now_ns()

    def resolution_ns(self, ns_per_tick: float) -> float:
        """The step between readings: one tick."""
        return ns_per_tick

    def sample(self) -> ticks.ClockSample:
        """It is the host's clock as well."""
        return ticks.ClockSample(self.read(), self.read(), 0)


class ForwardPass(NamedTuple):
    """Notes of a traced pass: when its layers begin, its requests, its cost."""

    start_ns: int
    rows: list[Row]
    layer: LayerCost

    def layer_ns(self, layer: int) -> int:
        """Start of a layer, which is the end of the layer before."""
        return self.start_ns + round(layer * self.layer.seconds * NANOSECONDS)


class ModeledTracer(tracer.Tracer):
    """The tracing of one modeled engine.

    Block ids are those that vLLM gives its worker, not those of the scheduler's records: oracles
    compare the two.
    """

    def __init__(self, experiment: Experiment, clock: VirtualClock, cost: Cost) -> None:
        super().__init__(experiment, VirtualTicks(clock), cost.hardware.multiprocessors)
        self.tile_tokens = TILE_TOKENS
        self.layer_times: Callable[[], array[int]] = lambda: array("q")  # of the recording
        self._cost = cost
        self._block_size = experiment.cache.block_size
        self._model = experiment.model

    def note(
        self,
        tokens: Mapping[str, int],
        contexts: Mapping[str, int],
        blocks: Mapping[str, Sequence[int]],
        start_ns: int,
    ) -> None:
        """Note a pass whose layers begin at `start_ns` (`PassListener`)."""
        if self._step is None or not tokens:
            return
        rows = [Row(count, contexts[name], [*blocks[name]]) for name, count in tokens.items()]
        layer = self._cost.layer_cost((row.tokens, row.context) for row in rows)
        forward = ForwardPass(start_ns, rows, layer)
        self._pass = tracer.TracedPass(self._step, [forward])
        times = self.layer_times()
        for number in range(self._model.layers):
            times.extend(
                (self._step, number, forward.layer_ns(number), forward.layer_ns(number + 1))
            )

    def launches(self, traced: tracer.TracedPass) -> list[flush.Launch]:
        """Kernels of each traced layer: the one that writes and the one of attention."""
        (forward,) = traced.launches
        kernels = self._kernels(forward)
        return [
            _launch(kernel, layer, forward.layer_ns(layer) + start_ns, duration_ns, accesses)
            for layer in self.layers
            for kernel, start_ns, duration_ns, accesses in kernels
        ]

    def _kernels(self, forward: ForwardPass) -> list[tuple[str, int, int, Accesses]]:
        """The kernels of any layer: name, start in the layer and duration in ns, and accesses."""
        rows, layer, model = forward.rows, forward.layer, self._model
        begin, written, attended = (
            int(seconds * NANOSECONDS)
            for seconds in (
                layer.write_start_s,
                layer.write_start_s + layer.write_s,
                layer.write_start_s + layer.write_s + layer.attention_s,
            )
        )
        size, workers = self._block_size, self.workers
        wrote = writes(rows, size, workers, written - begin)
        read = reads(rows, size, model.kv_heads, self.head_stride, workers, attended - written)
        return [
            (kv_events.WRITE, begin, written - begin, wrote),
            (kv_events.ATTENTION, written, attended - written, read),
        ]


def _launch(
    kernel: str, layer: int, start_ns: int, duration_ns: int, accesses: Accesses
) -> flush.Launch:
    """A kernel of one layer, with a segment for each multiprocessor."""
    events = accesses.events.copy()
    events["layer"] = layer
    events["start_ticks"] += np.uint64(start_ns)
    segments: dict[str, Any] = {
        "events": accesses.counts,
        "dropped": np.zeros_like(accesses.counts),
    }
    return flush.Launch(kernel, layer, start_ns, start_ns + duration_ns, segments, events)

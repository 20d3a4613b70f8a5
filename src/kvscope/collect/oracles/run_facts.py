"""The records of a run that its KV events are checked against."""

from dataclasses import dataclass, field
from typing import NamedTuple

from kvscope.collect.host_times import duration_ns, instants_ns, require_times
from kvscope.collect.kv.clock import EventClock
from kvscope.collect.kv.flushes import Flush
from kvscope.collect.oracles.found_blocks import FoundBlocks, Positions
from kvscope.collect.oracles.schedule import Schedule
from kvscope.results import Run
from kvscope.runfile import RUN_FILE

Place = tuple[int, int]  # repeat, step


@dataclass(frozen=True)
class LayerTimes:
    """Intervals of the layers in host ns since the run's start, by (repeat, step, layer)."""

    intervals: dict[tuple[int, int, int], tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of_run(cls, run: Run) -> "LayerTimes":
        """Read layers.parquet; empty if the run has none."""
        frame = run.layers
        start = instants_ns(run, frame["repeat"], frame["start_s"])
        end = start + duration_ns(frame["duration_s"])
        keys = zip(frame["repeat"], frame["step"], frame["layer"], strict=True)
        return cls(dict(zip(keys, zip(start.tolist(), end.tolist(), strict=True), strict=True)))

    def overhang_ns(self, flush: Flush, kernels: list[tuple[int, int] | None]) -> int | None:
        """Nanoseconds by which the flush's kernels extend beyond their layer; None if unknown.

        `kernels` are their intervals. It is unknown on a GPU, which runs kernels asynchronously.
        """
        layer = self.intervals.get((flush.repeat, flush.step, flush.layer))
        known = [interval for interval in kernels if interval is not None]
        if layer is None or not known or flush.segments.timers is not None:
            return None
        first, last = min(start for start, _ in known), max(end for _, end in known)
        return max(0, layer[0] - first, last - layer[1])


class Sizes(NamedTuple):
    """Tokens of a block and of a tile; None if unknown."""

    block_size: int | None = None
    tile_tokens: int | None = None


@dataclass(frozen=True)
class RunFacts:
    """A run's records, as the oracles need them; None or empty where they are not recorded."""

    clock: EventClock
    layers: LayerTimes = field(default_factory=LayerTimes)
    traced_layers: list[int] | None = None
    passes: frozenset[Place] = frozenset()  # traced passes
    schedule: Schedule | None = None
    blocks: int | None = None  # of the cache; block tables have numbers 1 … blocks
    preempted: dict[tuple[int, str], list[int]] | None = None  # steps, by (repeat, request)
    found: FoundBlocks | None = None  # in the prefix cache; None without one
    heads: list[int] | None = None  # KV heads that are traced
    counted: tuple[int | None, int | None] | None = None  # events and drops
    sizes: Sizes = field(default_factory=Sizes)
    every_head: bool = True  # whether no KV head is left out

    @classmethod
    def of_run(cls, run: Run) -> "RunFacts":
        """The facts of a traced run. Raises BadInput if its run.json has no clock for KV events.

        Traced passes and preemptions of an imported trace are unknown.
        """
        require_times(run)
        clock = EventClock.of_run(run.facts, run.directory / RUN_FILE)
        layers, schedule = LayerTimes.of_run(run), Schedule(run.batch)
        tracing, engine = run.facts.get("tracing") or {}, run.facts.get("engine") or {}
        if "step_stride" not in tracing or "layers" not in tracing:
            return cls(clock, layers, schedule=schedule)
        steps = run.steps[run.steps["step"] % tracing["step_stride"] == 0]
        places = zip(steps["repeat"].tolist(), steps["step"].tolist(), strict=True)
        exist = engine.get("layers")
        return cls(
            clock,
            layers,
            [layer for layer in tracing["layers"] if exist is None or layer < exist],
            frozenset(places),
            schedule,
            engine.get("kv_blocks_total"),
            preempted := _preempted(run),
            None if run.hits.empty else FoundBlocks(run.hits, preempted),
            tracing.get("kv_heads"),
            (tracing.get("events"), tracing.get("dropped_events")),
            Sizes(engine.get("block_size"), tracing.get("tile_tokens")),
            tracing.get("head_stride", 1) == 1,
        )

    def found_by(self, flush: Flush, request: str) -> Positions:
        """The blocks that a request of a flush found in the prefix cache, with their positions."""
        return self.found.of(flush.repeat, request, flush.step) if self.found else {}


def _preempted(run: Run) -> dict[tuple[int, str], list[int]]:
    """The steps whose scheduling preempted a request, by (repeat, request)."""
    lost = run.preemptions[run.preemptions["event"] == "preempt"]
    found: dict[tuple[int, str], list[int]] = {}
    for repeat, step, request in lost[["repeat", "step", "request_id"]].itertuples(index=False):
        found.setdefault((repeat, request), []).append(step)
    return found

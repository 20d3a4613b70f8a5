"""The records of a run that its KV events are checked against."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd

from kvscope.api.runs import RunData, traces
from kvscope.api.tables import passes, runfile
from kvscope_kernels.collect.clock import EventClock
from kvscope_kernels.collect.flushes import Flush

Positions = dict[int, int]  # of each block: its place in the request


class FoundBlocks:
    """The rows of a run's `hits` table: what each request found when it last began to run."""

    def __init__(self, hits: pd.DataFrame, preempted: dict[tuple[int, str], list[int]]) -> None:
        self._preempted = preempted
        self._found: dict[tuple[int, str], dict[int, Positions]] = {}
        columns = ["repeat", "request_id", "step", "block", "block_position"]
        for repeat, request, step, block, position in hits[columns].itertuples(index=False):
            of_request = self._found.setdefault((repeat, request), {})
            of_request.setdefault(step, {})[block] = position

    def of(self, repeat: int, request: str, step: int) -> Positions:
        """Blocks that a request of a pass found in the prefix cache and has had since."""
        since = max(
            (
                preempted
                for preempted in self._preempted.get((repeat, request), ())
                if preempted <= step
            ),
            default=-1,
        )
        hits = self._found.get((repeat, request), {})
        last = max((hit_step for hit_step in hits if since <= hit_step <= step), default=None)
        return {} if last is None else hits[last]


Row = tuple[str, int, int]  # phase, tokens in the cache before the pass, tokens of the pass


class Schedule:
    """The rows of a run's `batch` table by pass; empty for imported runs."""

    def __init__(self, batch: pd.DataFrame) -> None:
        rows = batch.sort_values(["repeat", "step"], kind="stable", ignore_index=True)
        self._rows = rows[["request_id", "phase", "context_tokens", "scheduled_tokens"]]
        places = rows[["repeat", "step"]].to_numpy()
        first = np.flatnonzero(np.append(True, (places[1:] != places[:-1]).any(axis=1)))
        ends = np.append(first[1:], len(rows))
        keys = [tuple(place) for place in places[first].tolist()] if len(rows) else []
        self._spans = dict(zip(keys, zip(first.tolist(), ends.tolist(), strict=True), strict=False))

    def __bool__(self) -> bool:
        """True if there is any pass."""
        return bool(self._spans)

    def of(self, repeat: int, step: int) -> dict[str, Row]:
        """The scheduled requests of a pass, by id; empty for an unknown pass."""
        first, end = self._spans.get((repeat, step), (0, 0))
        rows = self._rows.iloc[first:end]
        return {name: tuple(row) for name, *row in rows.itertuples(index=False, name=None)}  # type: ignore[misc]

    def difference(self, flush: Flush) -> str:
        """The first difference between a flush and the schedule, in words; empty if they agree."""
        scheduled = self.of(flush.repeat, flush.step)
        heads = zip(flush.phases, flush.context.tolist(), flush.scheduled.tolist(), strict=True)
        flushed: dict[str, Row] = dict(zip(flush.requests, heads, strict=True))
        for name in sorted({*scheduled, *flushed}):
            if scheduled.get(name) != flushed.get(name):
                flushed_row = flushed.get(name, "absent")
                return f"request {name}: {flushed_row}, scheduled {scheduled.get(name)}"
        phase = passes.phase_of_requests(phase for phase, _, _ in scheduled.values())
        return "" if phase == flush.phase else f"phase {flush.phase}, scheduled {phase}"


Place = tuple[int, int]  # repeat, step


@dataclass(frozen=True)
class LayerTimes:
    """Intervals of the layers in host ns since the run's start, by (repeat, step, layer)."""

    intervals: dict[tuple[int, int, int], tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of_run(cls, run: RunData) -> "LayerTimes":
        """Read layers.parquet; empty if the run has none."""
        frame = run.layers
        start = traces.instants_ns(run, frame["repeat"], frame["start_s"])
        end = start + traces.duration_ns(frame["duration_s"])
        keys = zip(frame["repeat"], frame["step"], frame["layer"], strict=True)
        return cls(dict(zip(keys, zip(start.tolist(), end.tolist(), strict=True), strict=True)))

    def overhang_ns(self, flush: Flush, kernels: list[tuple[int, int] | None]) -> int | None:
        """Nanoseconds by which the flush's kernels extend beyond their layer; None if unknown.

        `kernels` are their intervals. It is unknown on a GPU, which runs kernels asynchronously.
        """
        layer = self.intervals.get((flush.repeat, flush.step, flush.layer))
        intervals = [interval for interval in kernels if interval is not None]
        if layer is None or not intervals or flush.segments.timers is not None:
            return None
        first, last = min(start for start, _ in intervals), max(end for _, end in intervals)
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
    def of_run(cls, run: RunData) -> "RunFacts":
        """The facts of a traced run. Raises BadInput if its run.json has no clock for KV events.

        Traced passes and preemptions of an imported trace are unknown.
        """
        traces.require_times(run)
        clock = EventClock.of_run(run.record.tracing, run.directory / runfile.RUN_FILE)
        layers, schedule = LayerTimes.of_run(run), Schedule(run.batch)
        tracing, engine = run.record.tracing, run.record.engine
        if not tracing or not tracing.states("step_stride") or tracing.layers is None:
            return cls(clock, layers, schedule=schedule)
        steps = run.steps[run.steps["step"] % tracing.step_stride == 0]
        places = zip(steps["repeat"].tolist(), steps["step"].tolist(), strict=True)
        exist = engine.layers
        return cls(
            clock,
            layers,
            [layer for layer in tracing.layers if exist is None or layer < exist],
            frozenset(places),
            schedule,
            engine.kv_blocks_total,
            preempted := _preempted(run),
            None if run.hits.empty else FoundBlocks(run.hits, preempted),
            tracing.kv_heads,
            (tracing.stated("events"), tracing.dropped_events),
            Sizes(engine.stated("block_size"), tracing.tile_tokens),
            tracing.head_stride == 1,
        )

    def found_by(self, flush: Flush, request: str) -> Positions:
        """The blocks that a request of a flush found in the prefix cache, with their positions."""
        return self.found.of(flush.repeat, request, flush.step) if self.found else {}


def _preempted(run: RunData) -> dict[tuple[int, str], list[int]]:
    """The steps whose scheduling preempted a request, by (repeat, request)."""
    lost = run.preemptions[run.preemptions["event"] == "preempt"]
    steps: dict[tuple[int, str], list[int]] = {}
    for repeat, step, request in lost[["repeat", "step", "request_id"]].itertuples(index=False):
        steps.setdefault((repeat, request), []).append(step)
    return steps

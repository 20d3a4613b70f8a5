"""A Perfetto trace of a run, for ui.perfetto.dev, made from its timeline.

Every track of the timeline becomes a track, the layers' beneath the forward passes', and the
use of the KV cache becomes counters. Accesses to the KV cache are beneath the forward passes, too,
a track a worker. Slices of one Perfetto track have to nest, so that a slice that crosses another
one of its track goes to a further lane of the same name.
"""

from pathlib import Path
from typing import IO, Any

import pandas as pd
import pyarrow.parquet as pq
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent
from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

from kvscope.base.files import atomic_path
from kvscope.base.time_sources import mark_of
from kvscope.collect.host_times import instants_ns
from kvscope.collect.traces import TraceSlices
from kvscope.tables.results import Run

PASSES, TRACK_OF_LAYERS = "forward passes", "layers"
COUNTERS = {
    "KV blocks used": "kv_blocks_used",
    "KV tokens used": "kv_tokens_used",
    "scheduled tokens": "scheduled_tokens",
}
_SEQUENCE = 1  # all packets come from one writer
_COLUMNS = ["start_ns", "end_ns", "kind", "name", "track", "step"]


def write_perfetto(
    timeline: Path, run: Run, path: Path, accesses: TraceSlices | None = None
) -> None:
    """Write the trace of a timeline file, of the host's step table as counters, and of accesses.

    Perfetto has no negative times: where something is before the run, as what the profiler saw or
    what a clock places there, all times are counted from the first of it instead of from the run's
    start. Every track of a rehearsed run says that it is one.
    """
    slices = list(accesses.slices()) if accesses else []
    first = min([0, *(start for _, _, start, _ in slices)])
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        rows = pq.ParquetFile(timeline)
        trace = _Trace(file, min(first, _first_start(rows)), mark_of(run.time_source))
        for batch in rows.iter_batches(columns=_COLUMNS):
            for start, end, kind, name, track, step in zip(
                *batch.to_pydict().values(), strict=True
            ):
                label = f"{name} {step}" if kind == "step" else name or ""
                trace.slice(track, label, start, max(start, end))
        if accesses:
            group = trace.group(accesses.title)
            for track, name, start, end in slices:
                trace.slice(track, name, start, max(start, end), group)
        trace.finish()
        _write_counters(trace, run)


def _first_start(timeline: pq.ParquetFile) -> int:
    for batch in timeline.iter_batches(batch_size=1, columns=["start_ns"]):
        return int(batch["start_ns"][0].as_py())
    return 0


def _write_counters(trace: "_Trace", run: Run) -> None:
    for name, column in COUNTERS.items():
        steps = run.steps.dropna(subset=[column])
        times = instants_ns(run, steps["repeat"], steps["start_s"])
        values: pd.Series = steps[column].astype(int)
        for time, value in zip(times.tolist(), values.tolist(), strict=True):
            trace.count(name, time, value)


class _Trace:
    """Writes packets; gives each track, lane and counter an id when it first comes up.

    `mark` follows the name of each.
    """

    def __init__(self, file: IO[bytes], origin_ns: int, mark: str = "") -> None:
        self._builder = StreamingTraceProtoBuilder(file)
        self._origin_ns, self._mark = origin_ns, mark
        self._lanes: dict[str, list[_Lane]] = {}
        self._counters: dict[str, int] = {}
        self._tracks = 0

    def group(self, name: str) -> int:
        """A track beneath the forward passes for others to be beneath of."""
        return self._describe(name, parent=self._passes())

    def slice(self, track: str, name: str, start: int, end: int, parent: int | None = None) -> None:
        """Draw an interval; those of one track must come by start, outer before inner."""
        for lane in self._lanes.setdefault(track, []):
            self._close(lane, start)
            if lane.fits(end):
                break
        else:
            above = self._passes() if track == TRACK_OF_LAYERS else parent
            lane = _Lane(self._describe(track, parent=above))
            self._lanes[track].append(lane)
        lane.open_until.append(end)
        self._event(lane.track, start, TrackEvent.TYPE_SLICE_BEGIN, name=name)

    def finish(self) -> None:
        """End whatever is still open."""
        for lanes in self._lanes.values():
            for lane in lanes:
                self._close(lane, None)

    def count(self, counter: str, time: int, value: int) -> None:
        """Set a counter at an instant."""
        if counter not in self._counters:
            self._counters[counter] = self._describe(counter, is_counter=True)
        self._event(self._counters[counter], time, TrackEvent.TYPE_COUNTER, counter_value=value)

    def _close(self, lane: "_Lane", until: int | None) -> None:
        while lane.open_until and (until is None or lane.open_until[-1] <= until):
            self._event(lane.track, lane.open_until.pop(), TrackEvent.TYPE_SLICE_END)

    def _passes(self) -> int | None:
        lanes = self._lanes.get(PASSES)
        return lanes[0].track if lanes else None

    def _describe(self, name: str, parent: int | None = None, is_counter: bool = False) -> int:
        self._tracks += 1
        packet = self._packet()
        packet.track_descriptor.uuid = self._tracks
        packet.track_descriptor.name = name + self._mark
        if parent is not None:
            packet.track_descriptor.parent_uuid = parent
        if is_counter:
            packet.track_descriptor.counter.SetInParent()
        self._builder.write_packet(packet)
        return self._tracks

    def _event(self, track: int, time: int, type_: int, **fields: Any) -> None:
        packet = self._packet()
        packet.timestamp = time - self._origin_ns
        packet.track_event.track_uuid = track
        packet.track_event.type = type_
        for key, value in fields.items():
            setattr(packet.track_event, key, value)
        self._builder.write_packet(packet)

    def _packet(self) -> Any:
        packet = self._builder.create_packet()
        packet.trusted_packet_sequence_id = _SEQUENCE
        return packet


class _Lane:
    """A Perfetto track and the ends of its open slices, the innermost last."""

    def __init__(self, track: int) -> None:
        self.track = track
        self.open_until: list[int] = []

    def fits(self, end: int) -> bool:
        """Whether a slice that ends then would nest in what is open."""
        return not self.open_until or end <= self.open_until[-1]

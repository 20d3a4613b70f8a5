"""Correct flushes of KV events, made the slow and obvious way from what a batch has to do."""

import json
import random
import struct
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard

from kvscope.tables.runschema import TracingRecord

K_READ, V_READ, K_WRITE, V_WRITE = range(4)
COLUMNS = (
    *("kind", "row", "kv_head", "block", "block_position", "offset_tokens", "tokens"),
    *("start_ticks", "duration_ticks"),
)
# The fields of a record (docs/TRACE_SPEC.md): kind, flags, layer, row, head, block, position,
# offset, tokens, duration, start.
FIELDS = "BBHHHIIHHIQ"
ALL_HEADS = -1, 0xFFFF  # in a column, and in a record
GPU_CYCLES_PER_NS = 2  # of the synthetic GPU: its SMs tick twice in a nanosecond
Event = tuple[int, ...]  # as COLUMNS are, without those that the worker fills in


@dataclass
class Batch:
    """The layer of a forward pass: each row is (context tokens, scheduled tokens)."""

    rows: list[tuple[int, int]]
    block_size: int = 16
    tile_tokens: int = 8
    kv_heads: list[int] = field(default_factory=lambda: [0, 1])
    threads: int = 2
    gpu: bool = False
    repeat: int = 0
    step: int = 0
    layer: int = 0
    origin_ticks: int = 1_000_000
    seed: int = 0

    def flush(self) -> dict[str, Any]:
        """The flush that a correct engine writes of it."""
        return _Recorder(self).flush()


class _Recorder:
    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.random = random.Random(batch.seed)
        self.now = 10
        self.table = self._table()
        self.kernels: list[dict[str, Any]] = []
        self.segments: list[dict[str, int]] = []
        self.events: list[Event] = []

    def flush(self) -> dict[str, Any]:
        batch = self.batch
        self._kernel("write", self._writes())
        self._kernel("attention", self._reads())
        phases = ["decode" if q == 1 and c else "prefill" for c, q in batch.rows]
        names = list(self.segments[0]) if self.segments else _segment_names(batch.gpu)
        return {
            "version": 1,
            **{"repeat": batch.repeat, "step": batch.step, "layer": batch.layer},
            "phase": phases[0] if len(set(phases)) == 1 else "mixed",
            **{"block_size": batch.block_size, "tile_tokens": batch.tile_tokens},
            "kv_heads": batch.kv_heads,
            "requests": [str(100 + row) for row in range(len(batch.rows))],
            "phases": phases,
            "context_tokens": [context for context, _ in batch.rows],
            "scheduled_tokens": [scheduled for _, scheduled in batch.rows],
            "block_table": self.table,
            "origin_ticks": batch.origin_ticks,
            "kernels": self.kernels,
            "segments": {name: [segment[name] for segment in self.segments] for name in names},
            "events": {
                name: [event[place] for event in self.events] for place, name in enumerate(COLUMNS)
            },
        }

    def _table(self) -> list[list[int]]:
        """Blocks in no order, none of two requests."""
        size = self.batch.block_size
        lengths = [-(-(context + scheduled) // size) for context, scheduled in self.batch.rows]
        free = self.random.sample(range(1, 1 + 3 * sum(lengths)), sum(lengths))
        return [[free.pop() for _ in range(length)] for length in lengths]

    def _writes(self) -> list[list[Event]]:
        """Work items: for each block that new tokens fall into, K and V of all heads."""
        size = self.batch.block_size
        items: list[list[Event]] = []
        for row, (context, scheduled) in enumerate(self.batch.rows):
            places: dict[int, list[int]] = {}
            for token in range(context, context + scheduled):
                places.setdefault(token // size, []).append(token % size)
            for position, slots in places.items():
                where: Event = (self.table[row][position], position, slots[0], len(slots))
                items.append([(kind, row, -1, *where) for kind in (K_WRITE, V_WRITE)])
        return items

    def _reads(self) -> list[list[Event]]:
        """Work items: for each tile of queries and head, all blocks up to the tile's last query."""
        batch, items = self.batch, []
        for row, (context, scheduled) in enumerate(batch.rows):
            for first in range(0, scheduled, batch.tile_tokens):
                end = context + min(first + batch.tile_tokens, scheduled)
                for head in batch.kv_heads:
                    items.append(self._tile(row, head, end))
        return items

    def _tile(self, row: int, head: int, end: int) -> list[Event]:
        size = self.batch.block_size
        blocks: list[Event] = [
            (self.table[row][first // size], first // size, 0, min(size, end - first))
            for first in range(0, end, size)
        ]
        k: list[Event] = [(K_READ, row, head, *block) for block in blocks]
        v: list[Event] = [(V_READ, row, head, *block) for block in blocks]
        if self.batch.gpu:  # whose kernel reads K and V of a block before it goes to the next
            return [event for pair in zip(k, v, strict=True) for event in pair]
        return k + v

    def _kernel(self, name: str, items: list[list[Event]]) -> None:
        """Share the items among workers; each goes through its own one after the other."""
        batch = self.batch
        place, begin = len(self.kernels), self.now
        every = len(items) if batch.gpu else batch.threads
        ends = [begin]
        for worker in range(every):
            own = [event for item in items[worker::every] for event in item]
            ends.append(self._worker(place, worker, begin, own))
        self.now = max(ends) + 20
        if batch.gpu:
            self.kernels.append({"kernel": name, "start_ticks": begin, "end_ticks": max(ends)})
        else:
            bounds = {"start_ticks": begin, "end_ticks": max(ends) + 5}
            self.kernels.append({"kernel": name, **bounds})

    def _worker(self, place: int, worker: int, begin: int, own: list[Event]) -> int:
        rate = GPU_CYCLES_PER_NS if self.batch.gpu else 1
        skew = 5_000_000 * worker if self.batch.gpu else 0  # an SM's clock starts when it likes
        start = now = (begin + self.random.randint(0, 20)) * rate + skew
        for event in own:
            now += self.random.randint(0, 4)
            took = self.random.randint(20, 60)
            self.events.append((*event, now, took))
            now += took
        now += (start - now) % rate  # stamps of both clocks fall together
        segment = {"kernel": place, "worker": worker, "events": len(own), "dropped": 0}
        end = (now - skew) // rate
        if self.batch.gpu:
            segment |= {"sm": worker % 4, "start_clock": start, "end_clock": now}
            segment |= {"start_timer": (start - skew) // rate, "end_timer": end}
        self.segments.append(segment)
        return end


def _segment_names(gpu: bool) -> list[str]:
    own = ["sm", "start_clock", "end_clock", "start_timer", "end_timer"]
    return ["kernel", "worker", "events", "dropped", *(own if gpu else [])]


def with_records(found: dict[str, Any]) -> dict[str, Any]:
    """A flush whose columns of events are replaced by records."""
    rest = {key: value for key, value in found.items() if key != "events"}
    events = found["events"]
    count = len(events["kind"])
    fields = [
        *(events["kind"], [0] * count, [found["layer"]] * count, events["row"]),
        [ALL_HEADS[1] if head == ALL_HEADS[0] else head for head in events["kv_head"]],
        *(events[name] for name in ("block", "block_position", "offset_tokens", "tokens")),
        *(events["duration_ticks"], [start % 2**64 for start in events["start_ticks"]]),
    ]
    raw = b"".join(
        struct.pack(f"<{count}{form}", *values) for form, values in zip(FIELDS, fields, strict=True)
    )
    return rest | {"version": 2, "records": b64encode(raw).decode()}


def with_columns(found: dict[str, Any]) -> dict[str, Any]:
    """A flush whose records are replaced by columns of events."""
    rest = {key: value for key, value in found.items() if key != "records"}
    raw = b64decode(found["records"])
    count = len(raw) // struct.calcsize(f"<{FIELDS}")
    fields: list[list[int]] = []
    for form in FIELDS:
        size = struct.calcsize(f"<{count}{form}")
        fields.append(list(struct.unpack(f"<{count}{form}", raw[:size])))
        raw = raw[size:]
    kind, _, _, row, head, *where, took, start = fields
    head = [ALL_HEADS[0] if one == ALL_HEADS[1] else one for one in head]
    start = [one - 2**64 if one >= 2**63 else one for one in start]
    columns = zip(COLUMNS, (kind, row, head, *where, start, took), strict=True)
    return rest | {"version": 1, "events": dict(columns)}


def compressed(flushes: list[dict[str, Any]]) -> bytes:
    """A raw file's bytes."""
    text = "".join(json.dumps(flush) + "\n" for flush in flushes)
    return zstandard.compress(text.encode())


def write_flushes(path: Path, flushes: list[dict[str, Any]]) -> Path:
    """Write a raw file."""
    path.write_bytes(compressed(flushes))
    return path


def tracing(*samples: tuple[int, int], ns_per_tick: float = 1.0) -> TracingRecord:
    """The part of run.json about tracing; samples are (ticks, host ns)."""
    readings = [{"ticks": t, "host_ns": ns, "uncertainty_ns": 50} for t, ns in samples]
    clock = {"name": "tsc", "ns_per_tick": ns_per_tick, "resolution_ns": 1, "samples": readings}
    return TracingRecord.model_validate({"name": "full", "clock": clock})

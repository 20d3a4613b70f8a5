"""Reader of `kernel_events.jsonl.zst`: one flush a line, the events of one layer of one pass."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from kvscope.api.errors import BadInput
from kvscope.api.files import limits, reading, zstd_lines
from kvscope.api.runs import json_values, traces
from kvscope.api.tables import passes
from kvscope_kernels import bounds, kv_events
from kvscope_kernels.arraytypes import Int64s

# Of version 1: mostly below 256, and read three times as fast then.
_MOSTLY_SMALL = frozenset({"kind", "row", "block_position", "offset_tokens", "tokens"})
_TIMER_PAIRS = ("start_clock", "end_clock", "start_timer", "end_timer")
# From … to: the numbers of a flush, and of a record that is an event.
_HEAD = {
    **dict.fromkeys(("repeat", "step", "layer"), limits.COUNT),
    **dict.fromkeys(("block_size", "tile_tokens"), (1, limits.COUNT[1])),
    "origin_ticks": (0, 2**63 - 1),
}
_RECORD = {
    **dict.fromkeys(kv_events.COLUMNS, limits.INT32),
    "kind": (0, len(kv_events.KINDS) - 1),
    **dict.fromkeys(("start_ticks", "duration_ticks"), bounds.TICKS),
}
# Signed types that hold what records have; columns of version 1 stay int64.
_SIGNED = {
    **dict.fromkeys(kv_events.COLUMNS, np.int32),
    "kind": np.int8,
    **dict.fromkeys(("start_ticks", "duration_ticks"), np.int64),
}


@dataclass(frozen=True)
class Kernel:
    """A traced kernel's name and interval, in ticks since the flush's origin; None if unknown."""

    name: str
    start_ticks: int | None
    end_ticks: int | None


@dataclass(frozen=True)
class Segments:
    """The segments of a flush, one a worker of a kernel: arrays with one value a segment."""

    kernel: Int64s  # place in Flush.kernels
    worker: Int64s
    events: Int64s
    dropped: Int64s | None  # None if they were not counted
    sm: Int64s | None
    timers: dict[str, Int64s] | None  # a GPU's pairs of clock and timer


@dataclass(frozen=True)
class Flush:
    """The KV events of one layer of one forward pass, as arrays of one value an event.

    Columns of records have 32 bits at most, ticks 64; so multiply or add columns as int64.

    A request is a row of the batch; `kv_heads` are the traced heads, None in an imported trace that
    does not distinguish heads, and then a kernel that is absent was not traced.
    `docs/KV_EVENTS.md` has the meaning of every field.
    """

    repeat: int
    step: int
    layer: int
    phase: str
    block_size: int
    tile_tokens: int
    kv_heads: list[int] | None
    requests: list[str]
    phases: list[str]
    context: Int64s
    scheduled: Int64s
    block_table: list[list[int]] | None
    other_layers: int  # events that say they are of another layer
    unreadable: int  # records that are no events, left out here
    origin_ticks: int
    kernels: list[Kernel]
    segments: Segments
    kind: Int64s
    row: Int64s
    kv_head: Int64s
    block: Int64s
    block_position: Int64s
    offset_tokens: Int64s
    tokens: Int64s
    start_ticks: Int64s
    duration_ticks: Int64s

    def __len__(self) -> int:
        return len(self.kind)

    @cached_property
    def segment(self) -> Int64s:
        """The segment of each event."""
        return self.of_segments(np.arange(len(self.segments.events), dtype=np.int32))

    def of_segments(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Values of the segments, repeated for each event of a segment."""
        return np.repeat(values, self.segments.events)

    @cached_property
    def table_blocks(self) -> Int64s:
        """The blocks of the block table, row after row."""
        return np.fromiter(chain.from_iterable(self.block_table or ()), np.int64)

    @cached_property
    def end_ticks(self) -> Int64s:
        """End of each event, on the clock of start_ticks."""
        return self.start_ticks + self.duration_ticks

    @cached_property
    def known_row(self) -> npt.NDArray[np.bool_]:
        """Mask of the events that name a row of the batch."""
        return (self.row >= 0) & (self.row < self.rows)

    @cached_property
    def row_or_last(self) -> Int64s:
        """The row of each event, or the number of rows where the event names an unknown row."""
        row = self.row.astype(np.int64)
        return row if self.known_row.all() else np.where(self.known_row, row, self.rows)

    @property
    def rows(self) -> int:
        """Requests in the batch."""
        return len(self.requests)

    @property
    def where(self) -> str:
        """A phrase that identifies the flush: repeat, step, layer."""
        return f"repeat {self.repeat}, step {self.step}, layer {self.layer}"

    def traces(self, kernel: str) -> bool:
        """True if the flush should have events of this kernel."""
        return self.kv_heads is not None or any(k.name == kernel for k in self.kernels)


def read_flushes(path: Path) -> Iterator[Flush]:
    """Read the flushes of a file in order. Raises BadInput with file, line and fault."""
    remedy = "; trace fewer heads, by tracing.head_stride"
    lines = enumerate(zstd_lines(path, limits.LONGEST_FLUSH_BYTES, remedy), start=1)
    return traces.prefetch(parse_flush(line, path, number) for number, line in lines)


def parse_flush(line: bytes, path: Path, number: int) -> Flush:
    """Parse one line. Raises BadInput with file, line number and fault."""
    try:
        return _flush(orjson.loads(line))
    except KeyError as key:
        wrong = f"key {key} is missing"
    except (TypeError, ValueError) as error:
        wrong = str(error)
    raise BadInput(f"{path}: line {number} is not a flush of KV events: {wrong}")


def _flush(document: dict[str, Any]) -> Flush:
    version = document["version"]
    if version not in (kv_events.COLUMNS_VERSION, kv_events.FLUSH_VERSION):
        raise ValueError(
            f"its version is {reading.short_repr(version)}, this kvscope reads "
            f"{kv_events.COLUMNS_VERSION} and {kv_events.FLUSH_VERSION}"
        )
    head: dict[str, Any] = {
        key: json_values.require_integer(document[key], key, within)
        for key, within in _HEAD.items()
    }
    kernels = _kernels(document["kernels"])
    batch = _batch(document, head["block_size"])
    segments = _segments(document["segments"], len(kernels))
    if version == kv_events.FLUSH_VERSION:
        events = _of_records(document["records"])
    else:
        events = _of_columns(document["events"])
    expected = int(segments.events.sum())
    for name, column in events.items():
        if len(column) != expected:
            raise ValueError(
                f"events.{name} has {len(column)} values, the segments hold {expected}"
            )
    segments, readable = _readable(segments, events)
    if version == kv_events.FLUSH_VERSION:
        readable = {
            name: readable[name].astype(_SIGNED[name], copy=False) for name in kv_events.COLUMNS
        }
    return Flush(
        phase=json_values.require_choice(passes.PASS_PHASES, document["phase"], "phase"),
        other_layers=json_values.require_integer(
            document.get("other_layers", 0), "other_layers", limits.COUNT
        ),
        unreadable=expected - len(readable["kind"]),
        kernels=kernels,
        segments=segments,
        **head,
        **batch,
        **readable,
    )


def _kernels(rows: Any) -> list[Kernel]:
    if len(json_values.require_list(rows, "kernels")) > len(kv_events.KERNELS):
        raise ValueError(f"kernels has {len(rows)}, expected {len(kv_events.KERNELS)} at most")
    kernels = []
    for kernel in rows:
        name = json_values.require_choice(kv_events.KERNELS, kernel["kernel"], "kernel")
        start, end = (
            None
            if kernel[key] is None
            else json_values.require_integer(kernel[key], f"{key} of {name}", bounds.TICKS)
            for key in ("start_ticks", "end_ticks")
        )
        kernels.append(Kernel(name, start, end))
    return kernels


def _batch(document: dict[str, Any], block_size: int) -> dict[str, Any]:
    """Rows of the pass as the scheduler gave them, one a request."""
    requests = json_values.require_list(document["requests"], "requests")
    for name in ("phases", "context_tokens", "scheduled_tokens", "block_table"):
        if document[name] is not None and len(
            json_values.require_list(document[name], name)
        ) != len(requests):
            raise ValueError(f"{name} has {len(document[name])} rows, the batch {len(requests)}")
    for request, phase in zip(requests, document["phases"], strict=True):
        if not isinstance(request, str) or len(request) > bounds.LONGEST_ID:
            shown = reading.short_repr(request)
            raise ValueError(f"requests holds {shown}, where an id is expected")
        json_values.require_choice(passes.REQUEST_PHASES, phase, "a request's phase")
    if len({*requests}) < len(requests):
        raise ValueError("requests has one twice")
    context, scheduled = (
        json_values.require_integers(document[name], name, limits.COUNT)
        for name in ("context_tokens", "scheduled_tokens")
    )
    heads = _heads(document["kv_heads"])
    _check_size(context, scheduled, block_size, 1 if heads is None else len(heads))
    return {
        "kv_heads": heads,
        "requests": requests,
        "phases": document["phases"],
        "context": context,
        "scheduled": scheduled,
        "block_table": _table(document["block_table"]),
    }


def _heads(value: Any) -> list[int] | None:
    if value is None:
        return None
    heads: list[int] = json_values.require_integers(
        value, "kv_heads", (0, bounds.MOST_HEADS - 1)
    ).tolist()
    if len({*heads}) < len(heads):
        raise ValueError("kv_heads has one twice")
    return heads


def _table(rows: list[Any] | None) -> list[list[int]] | None:
    blocks = [block for row in rows or [] for block in json_values.require_list(row, "block_table")]
    json_values.require_integers(blocks, "block_table", limits.COUNT)
    return rows


def _check_size(context: Int64s, scheduled: Int64s, block_size: int, heads: int) -> None:
    """ValueError if the batch is too large; oracles have room for each read and token."""
    reads = 2 * heads * int((-(-(context + scheduled) // block_size)).sum())
    tokens = int(scheduled.sum())
    if max(reads, tokens) > bounds.MOST_CELLS:
        raise ValueError(
            f"its batch demands at least {reads:,} reads and schedules {tokens:,} tokens, "
            f"{bounds.MOST_CELLS:,} of either at most are read"
        )


def _segments(document: dict[str, Any], kernels: int) -> Segments:
    bounds_of = dict.fromkeys(("kernel", "worker", "events"), limits.COUNT)
    if document["dropped"] is not None:
        bounds_of["dropped"] = limits.COUNT
    if document.get("sm") is not None:
        bounds_of["sm"] = limits.COUNT
    if "start_clock" in document:
        bounds_of |= dict.fromkeys(_TIMER_PAIRS, bounds.TICKS)
    columns: dict[str, Any] = {
        name: json_values.require_integers(document[name], f"segments.{name}", bounds_of[name])
        for name in bounds_of
    }
    count = len(columns["events"])
    for name, column in columns.items():
        if len(column) != count:
            raise ValueError(f"segments.{name} has {len(column)} values; expected {count}")
    if count and columns["kernel"].max() >= kernels:
        raise ValueError(f"segments.kernel names a kernel beyond the {kernels} given")
    timers = {name: columns[name] for name in _TIMER_PAIRS} if "start_clock" in document else None
    needed = {name: columns[name] for name in ("kernel", "worker", "events")}
    return Segments(**needed, dropped=columns.get("dropped"), sm=columns.get("sm"), timers=timers)


def _of_records(encoded: Any) -> dict[str, Any]:
    """The fields of records (`events.encode_records`) that readers need."""
    if not isinstance(encoded, str):
        raise ValueError("records holds something else than a string")
    try:
        fields = kv_events.decode_records(encoded)
    except ValueError as error:
        raise ValueError(f"records is damaged: {error}") from None
    heads = fields["kv_head"].astype(np.int32)
    heads[heads == kv_events.RECORD_ALL_HEADS] = kv_events.ALL_HEADS
    start = fields["start_ticks"].view(np.int64)  # since the origin, modulo 2^64
    columns: dict[str, Any] = {name: fields[name] for name in kv_events.COLUMNS}
    return columns | {"kv_head": heads, "start_ticks": start}


def _of_columns(document: dict[str, Any]) -> dict[str, Any]:
    """Event fields of a flush of version 1, which has lists of integers."""
    columns = {
        name: json_values.to_int64(document[name], f"events.{name}", name in _MOSTLY_SMALL)
        for name in kv_events.COLUMNS
    }
    if len(columns["kind"]) and columns["duration_ticks"].min() < 0:
        raise ValueError("events.duration_ticks has negative values")
    return columns


def _readable(segments: Segments, events: dict[str, Any]) -> tuple[Segments, dict[str, Any]]:
    """Drop records with impossible values: memory that no kernel wrote to."""
    wild = [
        name for name, within in _RECORD.items() if not json_values.all_within(events[name], within)
    ]
    if not wild:
        return segments, events
    good = np.ones(len(events["kind"]), np.bool_)
    for name in wild:
        least, most = _RECORD[name]
        good &= (least <= events[name]) & (events[name] <= most)
    segment = np.repeat(np.arange(len(segments.events)), segments.events)
    counts = np.bincount(segment[good], minlength=len(segments.events))
    return replace(segments, events=counts), {name: c[good] for name, c in events.items()}

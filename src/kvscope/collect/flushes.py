"""Reading `kernel_events.jsonl.zst`: one flush, the events of one layer of one pass, at a time."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import orjson
import zstandard

from kvscope.collect.arrays import Int64s
from kvscope.errors import BadInput
from kvscope.kinds import KINDS

FORMAT_VERSION = 1
ALL_HEADS = -1
PHASES = ("prefill", "decode")

COLUMNS = (
    *("kind", "row", "kv_head", "block", "block_position", "offset_tokens", "tokens"),
    *("start_ticks", "duration_ticks"),
)
# Mostly below 256, and read three times as fast then.
_MOSTLY_SMALL = frozenset({"kind", "row", "block_position", "offset_tokens", "tokens"})
_TIMER_PAIRS = ("start_clock", "end_clock", "start_timer", "end_timer")
_CHUNK_BYTES = 1 << 17
T = TypeVar("T")


@dataclass(frozen=True)
class Kernel:
    """A traced kernel's name and interval, in ticks since the flush's origin; None if unknown."""

    name: str
    start_ticks: int | None
    end_ticks: int | None


@dataclass(frozen=True)
class Segment:
    """What was recorded by each worker of each kernel: arrays of one value a segment."""

    kernel: Int64s  # place in Flush.kernels
    worker: Int64s
    events: Int64s
    dropped: Int64s | None  # None where nobody counted
    sm: Int64s | None
    timers: dict[str, Int64s] | None  # a GPU's pairs of clock and timer


@dataclass(frozen=True)
class Flush:
    """The KV events of one layer of one forward pass, as arrays of one value an event.

    Requests are told by their row in the batch; `kv_heads` are the traced ones, None where an
    imported trace does not tell heads apart, and then a kernel that is absent was not traced.
    `docs/TRACE_SPEC.md` has the meaning of every field.
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
    segments: Segment
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
        """Of each event, the segment it lies in."""
        return np.repeat(np.arange(len(self.segments.events)), self.segments.events)

    @cached_property
    def end_ticks(self) -> Int64s:
        """When each event ended, on the clock of start_ticks."""
        return self.start_ticks + self.duration_ticks

    @cached_property
    def known_row(self) -> npt.NDArray[np.bool_]:
        """Which events name a row that the batch has."""
        return (self.row >= 0) & (self.row < self.rows)

    @cached_property
    def row_or_none(self) -> Int64s:
        """Each event's row, or the place after the last where it names one that is not there."""
        return self.row if self.known_row.all() else np.where(self.known_row, self.row, self.rows)

    @property
    def rows(self) -> int:
        """Requests in the batch."""
        return len(self.requests)

    @property
    def where(self) -> str:
        """The flush in words."""
        return f"repeat {self.repeat}, step {self.step}, layer {self.layer}"

    def traces(self, kernel: str) -> bool:
        """Whether events of this kernel are due."""
        return self.kv_heads is not None or any(k.name == kernel for k in self.kernels)


def read_flushes(path: Path) -> Iterator[Flush]:
    """Each flush of a file, in its order; BadInput names the file, the line and what is wrong."""
    for number, line in enumerate(ahead(lines(path)), start=1):
        yield parse(line, path, number)


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items, the next one made by another thread while this one is used."""
    with ThreadPoolExecutor(1) as thread:
        due = thread.submit(next, items, None)
        while (item := due.result()) is not None:
            due = thread.submit(next, items, None)
            yield item


def lines(path: Path) -> Iterator[bytes]:
    """The lines of a zstd-compressed file, without the newline; BadInput if it was cut."""
    pieces: list[bytes] = []
    for chunk in _decompressed(path):
        *whole, rest = chunk.split(b"\n")
        for line in whole:
            yield b"".join((*pieces, line))
            pieces = []
        if rest:
            pieces.append(rest)
    if pieces:
        raise BadInput(f"{path}: the last line has no end; the file was cut")


def _decompressed(path: Path) -> Iterator[bytes]:
    frame = None  # the one that is being read; writers may have put several in a row
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                while chunk:
                    if frame is None or frame.eof:
                        frame = zstandard.ZstdDecompressor().decompressobj()
                    yield frame.decompress(chunk)
                    chunk = frame.unused_data
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file") from None
    except zstandard.ZstdError as error:
        raise BadInput(f"{path}: not readable as Zstandard ({error})") from None
    if frame is None or not frame.eof:
        raise BadInput(f"{path}: ends within its Zstandard frame; the file was cut")


def parse(line: bytes, path: Path, number: int) -> Flush:
    """One line as a flush; BadInput names file, line and what is wrong with it."""
    try:
        return _flush(orjson.loads(line))
    except KeyError as key:
        wrong = f"key {key} is missing"
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        wrong = str(error)
    raise BadInput(f"{path}: line {number} is not a flush of KV events: {wrong}")


def _flush(found: dict[str, Any]) -> Flush:
    version = found["version"]
    if version != FORMAT_VERSION:
        raise ValueError(f"its version is {version}, this kvscope reads {FORMAT_VERSION}")
    _check_head(found)
    segments = _segments(found["segments"], len(found["kernels"]))
    rows = len(found["requests"])
    table = found["block_table"]
    events: dict[str, Any] = {
        name: _integers(found["events"][name], name in _MOSTLY_SMALL) for name in COLUMNS
    }
    for name, column in events.items():
        if len(column) != segments.events.sum():
            count = f"{len(column)} values, the segments hold {segments.events.sum()} events"
            raise ValueError(f"events.{name} has {count}")
    for name in ("phases", "context_tokens", "scheduled_tokens", "block_table"):
        if found[name] is not None and len(found[name]) != rows:
            raise ValueError(f"{name} has {len(found[name])} rows, the batch {rows}")
    if len(events["kind"]) and events["duration_ticks"].min() < 0:
        raise ValueError("events.duration_ticks has negative values")
    written = len(events["kind"])
    segments, events = _readable(segments, events)
    if strange := sorted({*found["phases"]} - {*PHASES}):
        raise ValueError(f"a request's phase is '{strange[0]}', known are {', '.join(PHASES)}")
    header: dict[str, Any] = {
        key: int(found[key]) for key in ("repeat", "step", "layer", "origin_ticks")
    }
    for key in ("block_size", "tile_tokens"):
        header[key] = int(found[key])
        if header[key] < 1:
            raise ValueError(f"{key} is {header[key]}, at least 1 is needed")
    return Flush(
        phase=str(found["phase"]),
        kv_heads=found["kv_heads"],
        requests=found["requests"],
        phases=found["phases"],
        context=_integers(found["context_tokens"]),
        scheduled=_integers(found["scheduled_tokens"]),
        block_table=table,
        other_layers=int(found.get("other_layers", 0)),
        unreadable=written - len(events["kind"]),
        kernels=[Kernel(k["kernel"], k["start_ticks"], k["end_ticks"]) for k in found["kernels"]],
        segments=segments,
        **header,
        **events,
    )


def _check_head(found: dict[str, Any]) -> None:
    """ValueError if a part of a flush that is not an array of events is not as it has to be."""
    if len({*found["requests"]}) < len(found["requests"]):
        raise ValueError("requests has one twice")
    heads, table = found["kv_heads"], found["block_table"]
    whole = {
        "kv_heads": heads or [],
        "block_table": [block for row in table or [] for block in row],
        "context_tokens": found["context_tokens"],
        "scheduled_tokens": found["scheduled_tokens"],
    }
    for name, values in whole.items():
        if not all(type(value) is int and value >= 0 for value in values):
            raise ValueError(f"{name} holds something else than whole numbers from 0 on")
    for kernel in found["kernels"]:
        ticks = kernel["start_ticks"], kernel["end_ticks"]
        if not all(tick is None or type(tick) is int for tick in ticks):
            raise ValueError(f"the ticks of kernel '{kernel['kernel']}' are no whole numbers")


def _readable(segments: Segment, events: dict[str, Any]) -> tuple[Segment, dict[str, Any]]:
    """Without the records of no known kind: whatever was in memory where no event was written."""
    kind = events["kind"]
    if not len(kind) or 0 <= kind.min() <= kind.max() < len(KINDS):
        return segments, events
    good = (kind >= 0) & (kind < len(KINDS))
    own = np.repeat(np.arange(len(segments.events)), segments.events)
    counts = np.bincount(own[good], minlength=len(segments.events))
    return replace(segments, events=counts), {name: c[good] for name, c in events.items()}


def _segments(found: dict[str, Any], kernels: int) -> Segment:
    columns: dict[str, Any] = {
        name: None if values is None else _integers(values) for name, values in found.items()
    }
    needed = {name: columns[name] for name in ("kernel", "worker", "events", "dropped")}
    timers = {name: columns[name] for name in _TIMER_PAIRS} if "start_clock" in columns else None
    count = len(columns["events"])
    for name, column in columns.items():
        if column is not None and len(column) != count:
            raise ValueError(f"segments.{name} has {len(column)} values, {count} are due")
    kernel = columns["kernel"]
    if count and not 0 <= kernel.min() <= kernel.max() < kernels:
        raise ValueError(f"segments.kernel names a kernel beyond the {kernels} given")
    return Segment(**needed, sm=columns.get("sm"), timers=timers)


def _integers(values: list[int], small: bool = False) -> Int64s:
    """As an array; the short way, if values are mostly `small`, takes those of one byte only."""
    try:
        return np.frombuffer(bytes(values), np.uint8).astype(np.int64) if small else _long(values)
    except ValueError:
        return _long(values)


def _long(values: list[int]) -> Int64s:
    return np.array(values, np.int64)

"""Convert the raw KV events of a run to tables, and judge them in the same pass.

Flushes are streamed; memory holds about two batches of rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa

from kvscope.api.runs import traces
from kvscope.api.tables import passes, tables
from kvscope_kernels import kv_events
from kvscope_kernels.arraytypes import Int64s
from kvscope_kernels.collect.clock import EventClock, timer_ns
from kvscope_kernels.collect.flushes import Flush, read_flushes
from kvscope_kernels.collect.launches import Launches

if TYPE_CHECKING:
    from kvscope_kernels.oracles.flush_counts import FlushCounts
    from kvscope_kernels.oracles.judge import Judge

DELTA_ENCODED = ("start_ns", "end_ns")
NULLABLE = ("request_id", "phase", "kv_head", "sm")
BATCH_ROWS = 1 << 18
_FLUSH_COLUMNS = ("repeat", "step", "layer")
# Narrow while they wait for their batch to fill.
_EVENT_COLUMNS = ("kind", "kv_head", "block", "block_position", "offset_tokens", "tokens")


def write_kv_tables(
    events: Path, out_dir: Path, judge: "Judge", launches: Launches | None = None, total: int = 0
) -> dict[str, Any]:
    """Write kv_events and kv_kernels of a raw file; return their account for collect.json.

    `launches` are the profiler's records of the same kernels. `total` is the expected number of
    events, for the progress bar. Raises BadInput if the file is damaged.
    """
    kernels = KernelRows()
    batches = (batch.columns() for batch in _batches(events, judge, kernels))
    rows = traces.write_batches(tables.KV_EVENTS, out_dir, batches, total, DELTA_ENCODED, NULLABLE)
    frame = kernels.frame()
    meaning = "the farthest that an event lies outside of its kernel, in ns"
    if launches is not None:
        frame = launches.with_residuals(frame)
        meaning = (
            "the farthest that the thread blocks' stamps of a kernel lie outside of the kernel in "
            "the profiler's record, in ns, both clocks aligned with the host's"
        )
    tables.write(tables.KV_KERNELS, frame, out_dir / tables.KV_KERNELS.file)
    residual = frame["residual_ns"].max()
    return {
        "rows": rows,
        "residual_ns": None if pd.isna(residual) else int(residual),
        "residual_meaning": meaning,
        "oracles": judge.account(),
    }


def _batches(events: Path, judge: "Judge", kernels: "KernelRows") -> Iterator["EventRows"]:
    """The rows of kv_events, many flushes at a time."""
    batch = EventRows()
    for flush in read_flushes(events):
        counts = judge.add(flush)
        start_ns, end_ns = times_ns(flush, judge.clock)
        kernels.add(counts, start_ns, end_ns)
        batch.add(flush, start_ns, end_ns)
        if batch.rows >= BATCH_ROWS:
            yield batch
            batch = EventRows()
    if batch.rows:
        yield batch


def times_ns(flush: Flush, clock: EventClock) -> tuple[Int64s, Int64s]:
    """Start and end of each event in ns since the run's start."""
    starts, ends = flush.start_ticks, flush.end_ticks
    if (timers := flush.segments.timers) is not None:
        starts, ends = (timer_ns(t, flush.segment, timers) for t in (starts, ends))
    return clock.ns(starts, flush.origin_ticks), clock.ns(ends, flush.origin_ticks)


@dataclass
class EventRows:
    """Rows of kv_events, collected flush by flush."""

    rows: int = 0
    flushes: list[tuple[int, ...]] = field(default_factory=list)  # _FLUSH_COLUMNS and events
    parts: dict[str, list[np.ndarray[Any, Any]]] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)  # ids in the order they were met

    def add(self, flush: Flush, start_ns: Int64s, end_ns: Int64s) -> None:
        """Add the events of a flush and their times in ns."""
        ids = [self.requests.setdefault(r, len(self.requests)) for r in flush.requests]
        phases = [passes.REQUEST_PHASES.index(phase) for phase in flush.phases]
        segments = flush.segments
        sm = np.full(len(segments.worker), -1) if segments.sm is None else segments.sm
        columns = {
            "request_id": np.array([*ids, -1], np.int32)[flush.row_or_last],
            "phase": np.array([*phases, -1], np.int32)[flush.row_or_last],
            **{name: getattr(flush, name) for name in _EVENT_COLUMNS},
            "start_ns": start_ns,
            "end_ns": end_ns,
            "worker": flush.of_segments(segments.worker.astype(np.int32)),
            "sm": flush.of_segments(sm.astype(np.int32)),
        }
        for name, values in columns.items():
            narrow = np.int64 if name in DELTA_ENCODED else np.int32
            self.parts.setdefault(name, []).append(values.astype(narrow, copy=False))
        self.flushes.append((flush.repeat, flush.step, flush.layer, len(flush)))
        self.rows += len(flush)

    def columns(self) -> dict[str, pa.Array]:
        """The table's columns."""
        *keys, events = np.array(self.flushes, np.int32).T
        values_by_name = {
            **dict(zip(_FLUSH_COLUMNS, (np.repeat(key, events) for key in keys), strict=True)),
            **{name: np.concatenate(parts) for name, parts in self.parts.items()},
        }
        names = {
            "request_id": list(self.requests),
            "phase": passes.REQUEST_PHASES,
            "kind": kv_events.KINDS,
        }
        columns = {
            name: _nullable(values) if name in NULLABLE else pa.array(values)
            for name, values in values_by_name.items()
        }
        return columns | {
            name: pa.DictionaryArray.from_arrays(columns[name], pa.array(words, pa.string()))
            for name, words in names.items()
        }


def _nullable(values: np.ndarray[Any, Any]) -> pa.Array:
    """Arrow array of values, with null for -1, such as ALL_HEADS."""
    absent = values == kv_events.ALL_HEADS
    return pa.array(values, mask=absent) if absent.any() else pa.array(values)


class KernelRows:
    """Rows of kv_kernels, collected flush by flush."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []

    def add(self, counts: "FlushCounts", start_ns: Int64s, end_ns: Int64s) -> None:
        """Add the kernels of a flush, whose events have these times in ns."""
        flush, dropped = counts.flush, counts.flush.segments.dropped
        for place, kernel in enumerate(flush.kernels):
            of_kernel = flush.segments.kernel == place
            interval = counts.intervals_ns[place]
            self.rows.append(
                (
                    *(flush.repeat, flush.step, flush.layer, flush.phase, kernel.name),
                    *(interval or (None, None)),
                    counts.demand.events(kernel.name),
                    int(flush.segments.events[of_kernel].sum()),
                    None if dropped is None else int(dropped[of_kernel].sum()),
                    interval
                    and _residual_ns(interval, flush.of_segments(of_kernel), start_ns, end_ns),
                )
            )

    def frame(self) -> pd.DataFrame:
        """The table."""
        frame = pd.DataFrame(self.rows, columns=tables.KV_KERNELS.names)
        whole = {c: "Int64" for c in frame.columns if c not in ("phase", "kernel")}
        return frame.astype(whole)


def _residual_ns(
    interval: tuple[int, int], of_kernel: Any, start_ns: Int64s, end_ns: Int64s
) -> int:
    """Farthest that a kernel's own events lie outside of its interval."""
    if not of_kernel.any():
        return 0
    early, late = interval[0] - start_ns[of_kernel].min(), end_ns[of_kernel].max() - interval[1]
    return max(0, int(early), int(late))

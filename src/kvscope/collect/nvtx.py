"""NVTX ranges: their names, domains and nesting, and which of them surround an API call.

A range that was never closed is exported without an end, or with the capture's end for one; it
counts as open until then and is marked as not closed.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvscope.collect.arrays import NULL, Bools, Int64s, take, to_arrow, to_numpy
from kvscope.collect.attribution import Marks, Names, Tree
from kvscope.collect.export import BATCH_ROWS, NsysExport
from kvscope.collect.nesting import NONE, Nesting
from kvscope.ranges import DOMAIN

TABLE = "NVTX_EVENTS"
PUSH_POP = (59, 70)  # NvtxPushPopRange, NvtxtPushPopRange: nest on their thread
START_END = (60, 71)  # NvtxStartEndRange, NvtxtStartEndRange: do not
DOMAIN_CREATE, DOMAIN_DESTROY = 75, 76

_COLUMNS = (
    *("start", "end", "eventType", "globalTid", "domainId", "text", "textId"),
    *("int64Value", "uint64Value", "int32Value", "uint32Value", "doubleValue", "floatValue"),
)
# SQLite has no unsigned integers: those of 64 bits come back negative beyond 2^63.
_PAYLOAD = (
    "COALESCE(int64Value, uint64Value + (uint64Value < 0) * 18446744073709551616.0, "
    "int32Value, uint32Value, doubleValue, floatValue)"
)
_READ = pa.schema(
    {
        **dict.fromkeys(("start", "end", "open", "kind", "thread", "domain"), pa.int64()),
        **{"name_id": pa.int64(), "has_text": pa.int64(), "text": pa.string()},
        **{"has_payload": pa.int64(), "payload": pa.float64()},
    }
)


class NvtxRanges:
    """All ranges of an export in order of their start; a range's id is its place in it."""

    def __init__(self, export: NsysExport) -> None:
        rows = _read(export)
        self.start, self.end = to_numpy(rows["start"]), to_numpy(rows["end"])
        self.thread = to_numpy(rows["thread"])
        self.push_pop: Bools = np.isin(to_numpy(rows["kind"]), PUSH_POP)
        self.payload = pc.if_else(rows["has_payload"].cast(pa.bool_()), rows["payload"], None)
        self.name = _names(export, rows)
        self.domain = _domains(export, self.thread, to_numpy(rows["domain"]))
        at_end = self.end == export.capture_end_ns
        self.unclosed: Bools = (to_numpy(rows["open"]) == 1) | at_end
        self._nest()

    def __len__(self) -> int:
        return len(self.start)

    def _nest(self) -> None:
        nested = np.flatnonzero(self.push_pop & (self.thread != NULL))
        self._nesting = Nesting(self.thread[nested], self.start[nested], self.end[nested])
        self._frame_range = nested[self._nesting.frame_range]
        self._parent = np.full(len(self), NONE, np.int64)
        self._parent[nested] = np.append(nested, NONE)[self._nesting.range_parent]
        own = self.push_pop & self.domain.are(DOMAIN)
        marks = Marks.of(self.name, own, _numbers(self.payload))
        everything = np.arange(len(self))
        self._ranges = Tree(self._parent, everything, self.name, marks)
        self._frames = Tree(self._nesting.frame_parent, self._frame_range, self.name, marks)

    def around(self, thread: Int64s, start: Int64s, end: Int64s) -> dict[str, pa.Array]:
        """What surrounds each interval on its thread: the innermost range, the path, its pass.

        Gives the columns nvtx_id, nvtx_path, repeat, step and layer; null where no range does.
        """
        frame = self._nesting.innermost(thread, start, end)
        path = pa.array(take(self._frames.path_code, frame), mask=frame == NONE)
        return {
            "nvtx_id": to_arrow(take(self._frame_range, frame), pa.int64()),
            "nvtx_path": pa.DictionaryArray.from_arrays(path, self._frames.paths),
            **{
                key: to_arrow(take(getattr(self._frames, key), frame), pa.int32())
                for key in ("repeat", "step", "layer")
            },
        }

    def batches(self) -> Iterator[dict[str, Any]]:
        """The rows of the nvtx_ranges table, in order of their start."""
        names, domains = self.name.to_arrow(), self.domain.to_arrow()
        paths = Names(self._ranges.path_code, self._ranges.paths).to_arrow()
        kinds = Names(self.push_pop.astype(np.int64), pa.array(["start_end", "push_pop"]))
        known = self.thread != NULL
        columns = {
            "id": pa.array(np.arange(len(self))),
            "start_ns": pa.array(self.start),
            "end_ns": pa.array(self.end),
            "name": names,
            "domain": domains,
            "kind": kinds.to_arrow(),
            "pid": to_arrow(np.where(known, pid_of(self.thread), NULL), pa.int64()),
            "tid": to_arrow(np.where(known, tid_of(self.thread), NULL), pa.int64()),
            "payload": self.payload,
            "parent_id": to_arrow(np.where(self._parent == NONE, NULL, self._parent), pa.int64()),
            "depth": pa.array(self._ranges.depth.astype(np.int32)),
            "path": paths,
            "repeat": to_arrow(self._ranges.repeat, pa.int32()),
            "step": to_arrow(self._ranges.step, pa.int32()),
            "layer": to_arrow(self._ranges.layer, pa.int32()),
            "closed": pa.array(~self.unclosed),
        }
        for first in range(0, len(self), BATCH_ROWS):
            yield {key: column.slice(first, BATCH_ROWS) for key, column in columns.items()}


def pid_of(global_id: Int64s) -> Int64s:
    """The process in Nsight's globalTid or globalPid: vm << 48 | pid << 24 | tid."""
    return (global_id >> 24) & 0xFFFFFF


def tid_of(global_id: Int64s) -> Int64s:
    """The thread in Nsight's globalTid."""
    return global_id & 0xFFFFFF


def _read(export: NsysExport) -> pa.RecordBatch:
    """The ranges by start, outer before inner."""
    if TABLE not in export.tables:
        return pa.RecordBatch.from_pylist([], schema=_READ)
    sql = f"""
        SELECT start, COALESCE("end", {_open_until(export)}) AS "end", "end" IS NULL AS open,
            eventType AS kind, globalTid AS thread, domainId AS domain,
            textId AS name_id, text IS NOT NULL AS has_text, COALESCE(text, '') AS text,
            {_PAYLOAD} IS NOT NULL AS has_payload,
            CAST(COALESCE({_PAYLOAD}, 0) AS REAL) AS payload
        FROM (SELECT rowid AS row, {export.select(TABLE, _COLUMNS)} FROM {TABLE})
        WHERE eventType IN {PUSH_POP + START_END}
        ORDER BY start, 2 DESC, row"""
    batches = [batch for batch in export.stream(sql) if batch.num_rows]
    table = pa.Table.from_batches(batches, None if batches else _READ).cast(_READ)
    rows = table.combine_chunks().to_batches()
    return rows[0] if rows else pa.RecordBatch.from_pylist([], schema=_READ)


def _open_until(export: NsysExport) -> int:
    """The instant to which a range without an end is taken to last: the last one known."""
    if export.capture_end_ns is not None:
        return export.capture_end_ns
    tables = {TABLE, "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL"}
    ends = [export.rows(f'SELECT MAX("end") FROM {t}')[0][0] for t in tables & export.tables]
    return max((int(end) for end in ends if end is not None), default=0)


def _names(export: NsysExport, rows: pa.RecordBatch) -> Names:
    """A range's own text or else, for a registered string, the one its id stands for."""
    registered = export.strings.lookup(rows["name_id"]).cast(pa.string())
    own = rows["has_text"].cast(pa.bool_())
    return Names.of(pc.if_else(own, rows["text"], registered))


def _numbers(payload: pa.Array) -> Int64s:
    """Payloads that can number a repeat, pass or layer; NULL for all others."""
    values = payload.fill_null(-1).to_numpy()
    usable = (values >= 0) & (values <= np.iinfo(np.int32).max) & (values == np.floor(values))
    return np.where(usable, np.where(usable, values, 0).astype(np.int64), NULL)


def _domains(export: NsysExport, thread: Int64s, domain: Int64s) -> Names:
    """The name of each range's domain; ids are a process's own, and id 0 has no name."""
    processes, process = np.unique(
        np.where(thread == NULL, NULL, thread >> 24), return_inverse=True
    )
    ids, id_ = np.unique(np.where(domain == NULL, 0, domain), return_inverse=True)
    pairs, code = np.unique(process * len(ids) + id_, return_inverse=True)
    known = domain_names(export)
    values = [
        known.get((int(processes[p // len(ids)]), i), f"domain {i}" if i else "")
        for p, i in ((int(p), int(ids[p % len(ids)])) for p in pairs)
    ]
    return Names(code, pa.array(values, pa.string()))


def domain_names(export: NsysExport) -> dict[tuple[int, int], str]:
    """Names of the domains by (process, domain id); a process is a globalTid without its tid."""
    if TABLE not in export.tables:
        return {}
    rows = export.rows(
        f"""SELECT globalTid >> 24, domainId, text, textId
            FROM (SELECT {export.select(TABLE, _COLUMNS)} FROM {TABLE})
            WHERE eventType = {DOMAIN_CREATE} AND globalTid IS NOT NULL"""
    )
    texts = export.strings.lookup(pa.array([row[3] for row in rows], pa.int64())).to_pylist()
    return {
        (process, domain): (own if own is not None else registered) or f"domain {domain}"
        for (process, domain, own, _), registered in zip(rows, texts, strict=True)
    }

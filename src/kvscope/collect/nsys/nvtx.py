"""NVTX ranges: their names, domains and nesting, and which of them surround an API call.

A range that was never closed is exported without an end, or with the capture's end for one; it
counts as open until then and is marked as not closed.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvscope.base import limits
from kvscope.base.arraytypes import Bools, Int64s
from kvscope.base.errors import BadInput
from kvscope.base.ranges import DOMAIN
from kvscope.collect.nsys.attribution import MORE, Names, RangeNumbers, RangeTree, Surroundings
from kvscope.collect.nsys.export import BATCH_ROWS, NsysExport, Query
from kvscope.collect.nsys.nesting import NONE, Nesting
from kvscope.collect.nsys.nullable import NULL, to_arrow, to_numpy
from kvscope.collect.nsys.schema import (
    CALLS,
    DOMAIN_CREATE,
    FRACTION_PAYLOADS,
    KERNELS,
    PUSH_POP,
    RANGE_COLUMNS,
    RANGES,
    START_END,
    WHOLE_PAYLOADS,
    pid_of,
    tid_of,
)
from kvscope.collect.nsys.strings import cut, is_cut

_COLUMNS = pa.schema(
    {
        **dict.fromkeys(("start", "end", "globalTid", "domainId", "textId"), pa.int64()),
        "text": pa.dictionary(pa.int32(), pa.string()),
        **{"push_pop": pa.bool_(), "payload": pa.float64(), "open": pa.bool_()},
    }
)


class NvtxRanges:
    """All ranges of an export in order of their start; a range's id is its place in it."""

    def __init__(self, export: NsysExport) -> None:
        rows = _read(export)
        self.start, self.end = to_numpy(rows["start"]), to_numpy(rows["end"])
        self.thread = to_numpy(rows["globalTid"])
        self.push_pop: Bools = rows["push_pop"].to_numpy()
        self.payload = rows["payload"].combine_chunks()
        self.name = _names(export, rows)
        self.domain = _domains(export, self.thread, to_numpy(rows["domainId"]))
        self.unclosed: Bools = rows["open"].to_numpy() | (self.end == export.capture_end_ns)
        try:
            self._nest()
        except ValueError as error:
            raise BadInput(f"{export.path}: table {RANGES}: {error}") from None

    def __len__(self) -> int:
        return len(self.start)

    def _nest(self) -> None:
        nested = np.flatnonzero(self.push_pop & (self.thread != NULL))
        nesting = Nesting(self.thread[nested], self.start[nested], self.end[nested])
        self._too_deep = nesting.too_deep
        self._parent = np.full(len(self), NONE, np.int64)
        self._parent[nested] = np.append(nested, NONE)[nesting.range_parent]
        is_own = self.push_pop & self.domain.equal(DOMAIN)
        numbers = RangeNumbers.of(self.name, is_own, _numbers(self.payload))
        everything = np.arange(len(self))
        self._ranges = RangeTree(self._parent, everything, self.name, numbers)
        frame_range = nested[nesting.frame_range]
        frames = RangeTree(nesting.frame_parent, frame_range, self.name, numbers)
        self.surroundings = Surroundings(nesting, frame_range, frames)

    @property
    def warnings(self) -> list[str]:
        """Sentences on ranges that are left out."""
        too_deep, cut = self._too_deep, int(self._ranges.cut.sum())
        sentences = []
        if too_deep:
            sentences.append(
                f"{too_deep:,} NVTX ranges are nested more than {limits.DEEPEST_STACK:,} deep; "
                "work in them is attributed to the last range above that depth."
            )
        if cut:
            sentences.append(
                f"The paths of {cut:,} NVTX ranges are too long; they end with '{MORE}' where "
                "names are left out."
            )
        return sentences

    def batches(self) -> Iterator[dict[str, Any]]:
        """The rows of the nvtx_ranges table, in order of their start."""
        names, domains = self.name.to_arrow(), self.domain.to_arrow()
        kinds = Names(self.push_pop.astype(np.int64), pa.array(["start_end", "push_pop"]))
        has_thread = self.thread != NULL
        columns = {
            "id": pa.array(np.arange(len(self))),
            "start_ns": pa.array(self.start),
            "end_ns": pa.array(self.end),
            "name": names,
            "domain": domains,
            "kind": kinds.to_arrow(),
            "pid": to_arrow(np.where(has_thread, pid_of(self.thread), NULL), pa.int64()),
            "tid": to_arrow(np.where(has_thread, tid_of(self.thread), NULL), pa.int64()),
            "payload": self.payload,
            "parent_id": to_arrow(np.where(self._parent == NONE, NULL, self._parent), pa.int64()),
            "depth": pa.array(self._ranges.depth.astype(np.int32)),
            "path": self._ranges.path,
            **self._ranges.numbers,
            "closed": pa.array(~self.unclosed),
        }
        for first in range(0, len(self), BATCH_ROWS):
            yield {key: column.slice(first, BATCH_ROWS) for key, column in columns.items()}


def _read(export: NsysExport) -> pa.Table:
    """The ranges by start, outer before inner; one chunk a column, texts encoded."""
    whole = (*RANGE_COLUMNS, *WHOLE_PAYLOADS)
    # A text stays one: the driver then says so, where SQL would make a number of it.
    strange = " OR ".join(f"typeof({name}) IN ('text', 'blob')" for name in FRACTION_PAYLOADS)
    payload = ", ".join(FRACTION_PAYLOADS)
    fraction = f"CASE WHEN {strange} THEN '' ELSE CAST(COALESCE({payload}, 0) AS REAL) END"
    query = Query(
        RANGES,
        whole,
        (*FRACTION_PAYLOADS, "text"),
        computed={
            "end": (f'COALESCE("end", {_open_until(export)})', pa.int64()),
            "open": ('"end" IS NULL', pa.int64()),
            "has_text": ("text IS NOT NULL", pa.int64()),
            "text": (cut("text"), pa.string()),
            "cut": (is_cut("text"), pa.int64()),
            "has_fraction": (f"COALESCE({payload}) IS NOT NULL", pa.int64()),
            "fraction": (fraction, pa.float64()),
        },
        where=f"eventType IN {PUSH_POP + START_END} "
        "OR typeof(eventType) NOT IN ('integer', 'null')",
    )
    batches = []
    if RANGES in export.tables:
        for batch in export.stream(query):
            batches.append(_range_columns(batch))
            export.count_texts(batches[-1]["text"].dictionary, batch["cut"])
    return pa.Table.from_batches(batches, _COLUMNS).unify_dictionaries().combine_chunks()


def _range_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The columns of ranges, as narrow as they can be, of those of NVTX events."""
    has_text = pc.equal(batch["has_text"], 1)
    text = pc.if_else(has_text, batch["text"].cast(pa.string()), pa.scalar(None, pa.string()))
    columns = {
        **{name: batch[name] for name in ("start", "end", "globalTid", "domainId", "textId")},
        "text": text.dictionary_encode(),
        "push_pop": np.isin(batch["eventType"].to_numpy(), PUSH_POP),
        "payload": _payload(batch),
        "open": pc.equal(batch["open"], 1),
    }
    return pa.record_batch(columns, _COLUMNS)


def _open_until(export: NsysExport) -> int:
    """The instant to which a range without an end is taken to last: the last one known."""
    if export.capture_end_ns is not None:
        return export.capture_end_ns
    tables = {RANGES, CALLS, KERNELS}
    sources = [export.source(table, ("end",)) for table in tables & export.tables]
    ends = [export.rows(f'SELECT MAX("end") FROM {source}')[0][0] for source in sources]
    return max((end for end in ends if isinstance(end, int)), default=0)


def _payload(rows: pa.RecordBatch) -> pa.Array:
    """A range's number, whichever column has it; null if none."""
    payload = np.where(to_numpy(rows["has_fraction"]) == 1, rows["fraction"].to_numpy(), np.nan)
    for name in reversed(WHOLE_PAYLOADS):
        values = to_numpy(rows[name])
        present = rows[name].is_valid().to_numpy(zero_copy_only=False)
        number = values.astype(np.float64)
        if name == "uint64Value":  # SQLite has no unsigned integers: beyond 2^63 they are negative
            number += (values < 0) * 2.0**64
        payload = np.where(present, number, payload)
    return pa.array(payload, from_pandas=True)


def _names(export: NsysExport, rows: pa.Table) -> Names:
    """A range's own text, else the registered string of its id."""
    texts, strings = rows["text"].combine_chunks(), export.strings
    places, registered = to_numpy(texts.indices), strings.places(to_numpy(rows["textId"]))
    values = pa.concat_arrays([pa.array([""]), texts.dictionary, strings.values])
    registered = np.where(registered == NULL, 0, registered + 1 + len(texts.dictionary))
    code = np.where(places == NULL, registered, places + 1)
    distinct = values.dictionary_encode()
    return Names(to_numpy(distinct.indices)[code], distinct.dictionary)


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
    names = domain_names(export)
    values = [
        names.get((int(processes[p // len(ids)]), i), f"domain {i}" if i else "")
        for p, i in ((int(p), int(ids[p % len(ids)])) for p in pairs)
    ]
    return Names(code, pa.array(values, pa.string()))


def domain_names(export: NsysExport) -> dict[tuple[int, int], str]:
    """Names of the domains by (process, domain id); a process is a globalTid without its tid."""
    if RANGES not in export.tables:
        return {}
    source = export.source(RANGES, ("globalTid", "domainId", "text", "textId", "eventType"))
    rows = export.rows(
        f"""SELECT globalTid >> 24, domainId, text IS NOT NULL, {cut("text")}, textId
            FROM {source}
            WHERE eventType = {DOMAIN_CREATE} AND typeof(globalTid) = 'integer'
            AND typeof(domainId) = 'integer' AND typeof(textId) IN ('integer', 'null')"""
    )
    texts = export.strings.lookup(pa.array([row[4] for row in rows], pa.int64())).to_pylist()
    return {
        (process, domain): (text if has_own else registered) or f"domain {domain}"
        for (process, domain, has_own, text, _), registered in zip(rows, texts, strict=True)
    }

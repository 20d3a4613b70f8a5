"""KV events as slices of a trace: each stretch of a worker, and in it the access to each block."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

MOST_EVENTS = 300_000
KINDS = {"k_read": "K read", "v_read": "V read", "k_write": "K write", "v_write": "V write"}
_PASS = ["repeat", "step"]
_STRETCH = [*_PASS, "worker", "layer", "request_id", "kv_head", "kind", "sm"]
_ACCESS = ["worker", "block_position", "block", "start_ns", "end_ns"]
_COLUMNS = [*dict.fromkeys([*_STRETCH, *_ACCESS])]

Slice = tuple[str, str, int, int]


@dataclass(frozen=True)
class FirstAccesses:
    """The KV events of the first passes that fit: `shown` of `passes`."""

    events: pa.Table
    shown: int
    passes: int

    @property
    def title(self) -> str:
        """Kind of the slices, and the number of their passes."""
        some = "" if self.shown == self.passes else f" (first {self.shown} of {self.passes} passes)"
        return f"KV accesses{some}"

    @property
    def warning(self) -> str | None:
        """Sentence on the events left out; None if all are shown."""
        if self.shown == self.passes:
            return None
        return (
            f"The Perfetto trace has the KV accesses of the first {self.shown} of {self.passes} "
            f"forward passes that have any: it takes {MOST_EVENTS:,}, or one pass."
        )

    def slices(self) -> Iterator[Slice]:
        """Track, name, start and end of each slice; by track and start, outer before inner."""
        if not self.events.num_rows:
            return
        rows = self.events.sort_by([("worker", "ascending"), ("start_ns", "ascending")])
        first = _first_of_stretches(rows)
        ends = np.maximum.reduceat(rows["end_ns"].to_numpy(), first)
        stretch_ends = dict(zip(first.tolist(), ends.tolist(), strict=True))
        columns = {name: rows[name].to_pylist() for name in _COLUMNS}
        access = [columns[name] for name in _ACCESS]
        for row, (worker, position, block, start, end) in enumerate(zip(*access, strict=True)):
            track = f"worker {worker}"
            if row in stretch_ends:
                yield track, _name(columns, row), start, stretch_ends[row]
            yield track, f"block {position} ({block})", start, end


def read_accesses(path: Path, most_events: int = MOST_EVENTS) -> FirstAccesses:
    """Events of whole passes from the first on, up to `most_events`; at least one pass."""
    counted = pq.read_table(path, columns=_PASS).group_by(_PASS).aggregate([([], "count_all")])
    counted = counted.sort_by([(name, "ascending") for name in _PASS])
    total = np.cumsum(counted["count_all"].to_numpy())
    shown = min(len(total), max(1, int(np.searchsorted(total, most_events, side="right"))))
    if not shown:
        return FirstAccesses(pq.read_schema(path).empty_table().select(_COLUMNS), 0, 0)
    repeat, step = (counted[name][shown - 1].as_py() for name in _PASS)
    last = pc.field("step") <= step
    wanted = (pc.field("repeat") < repeat) | ((pc.field("repeat") == repeat) & last)
    return FirstAccesses(pq.read_table(path, columns=_COLUMNS, filters=wanted), shown, len(total))


def _first_of_stretches(rows: pa.Table) -> Any:
    """Mask of the rows that begin another worker, pass, layer, request, head or kind."""
    same = np.ones(rows.num_rows - 1, bool)
    for name in _STRETCH:
        codes = pc.dictionary_encode(rows[name].combine_chunks(), null_encoding="encode")
        values = codes.indices.to_numpy(zero_copy_only=False)
        same &= values[1:] == values[:-1]
    return np.flatnonzero(np.concatenate([[True], ~same]))


def _name(columns: dict[str, list[Any]], row: int) -> str:
    """Name of a stretch: 'layer 0: K read, request 3, head 2'."""
    head, sm = columns["kv_head"][row], columns["sm"][row]
    heads = "all heads" if head is None else f"head {head}"
    where = "" if sm is None else f", SM {sm}"
    request = columns["request_id"][row]
    kind = KINDS[columns["kind"][row]]
    return f"layer {columns['layer'][row]}: {kind}, request {request}, {heads}{where}"

"""KV events of one repeat, as columns of numbers."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from kvscope.api.errors import BadInput
from kvscope.api.tables import passes, tables
from kvscope_kernels import kv_events
from kvscope_kernels.arraytypes import Bools, Int64s, Ints

NONE = -1  # stands for null: no request of the batch, all heads at once
BATCH_EVENTS = 2_000_000


@dataclass(frozen=True)
class Events:
    """Columns of `kv_events` in the order of passes, one value an event.

    `request` is an index into `requests`, `kind` one into `KINDS`; NONE is null.
    """

    requests: tuple[str, ...]
    step: Ints
    layer: Ints
    request: Ints
    kind: Ints
    kv_head: Ints
    block: Ints
    block_position: Ints
    offset_tokens: Ints
    tokens: Ints
    worker: Ints
    start_ns: Int64s
    end_ns: Int64s

    def __len__(self) -> int:
        return len(self.step)

    def take(self, rows: slice | Ints | Bools) -> "Events":
        """The events of these rows."""
        return replace(self, **{name: getattr(self, name)[rows] for name in COLUMNS})

    @property
    def reads(self) -> Bools:
        """Mask of the events that are reads."""
        return self.kind <= kv_events.V_READ

    def batches(self, size: int = BATCH_EVENTS) -> Iterator["Events"]:
        """The events in batches of whole passes with about `size` events, or of one larger pass."""
        first = 0
        while first < len(self):
            last_step = self.step[min(first + size, len(self)) - 1]
            end = int(np.searchsorted(self.step, last_step, side="right"))
            yield self.take(slice(first, end))
            first = end


COLUMNS = [field.name for field in fields(Events) if field.name != "requests"]
_TEXTS = {"request": "request_id", "kind": "kind"}


def read_events(
    path: Path,
    repeat: int,
    steps: Collection[int] | None = None,
    layers: Collection[int] | None = None,
) -> Events:
    """The events of one repeat; only of these steps and layers, if given.

    Raises BadInput if the file is missing, damaged or of another schema.
    """
    wanted: list[tuple[str, str, Any]] = [("repeat", "=", repeat)]
    wanted += [
        (name, "in", list(some))
        for name, some in (("step", steps), ("layer", layers))
        if some is not None
    ]
    names = [_TEXTS.get(name, name) for name in COLUMNS]
    rows = _read(path, columns=names, filters=wanted, read_dictionary=list(_TEXTS.values()))
    requests, request = _codes(rows["request_id"])
    kinds, kind = _codes(rows["kind"])
    place = np.array([kv_events.KINDS.index(name) for name in kinds], np.int8)
    columns = {name: _numbers(rows[name]) for name in COLUMNS if name not in _TEXTS}
    events = Events(requests=requests, request=request, kind=place[kind], **columns)
    ordered = bool((events.step[1:] >= events.step[:-1]).all())
    return events if ordered else events.take(np.argsort(events.step, kind="stable"))


def traced_parts(path: Path, repeat: int) -> pd.DataFrame:
    """Number of `events` of a repeat by `step`, `layer` and `phase`, in that order.

    Raises BadInput like `read_events`.
    """
    part = ["step", "layer", "phase"]
    texts = ["phase"]
    rows = _read(path, columns=part, filters=[("repeat", "=", repeat)], read_dictionary=texts)
    counted = rows.group_by(part).aggregate([([], "count_all")])
    frame: pd.DataFrame = counted.to_pandas().rename(columns={"count_all": "events"})
    return frame.astype({"phase": str}).sort_values(part, ignore_index=True)


def phases_of(parts: pd.DataFrame) -> dict[int, str]:
    """The phase of each step in `traced_parts`: 'mixed' if it has requests in both phases."""
    of_step: dict[int, set[str]] = {}
    for step, phase in zip(parts["step"].tolist(), parts["phase"].tolist(), strict=True):
        of_step.setdefault(step, set()).add(phase)
    return {step: passes.phase_of_requests(phases) for step, phases in of_step.items()}


def _read(path: Path, **how: Any) -> pa.Table:
    if complaint := tables.check_file(tables.KV_EVENTS, path):
        raise BadInput(f"{complaint}; make it with `kvscope collect`")
    # Row groups have dictionaries of their own; grouping wants one.
    return pq.read_table(path, **how).unify_dictionaries()


def _codes(column: pa.ChunkedArray) -> tuple[tuple[str, ...], Ints]:
    """The distinct texts of a column, and the index of each row's text; NONE for null."""
    encoded = column.combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):  # of no chunk, or of several
        encoded = pa.concat_arrays(encoded.chunks) if encoded.num_chunks else None
    if encoded is None or not len(encoded):
        return (), np.empty(0, np.int32)
    codes: Ints = encoded.indices.fill_null(NONE).to_numpy(zero_copy_only=False)
    return tuple(encoded.dictionary.to_pylist()), codes


def _numbers(column: pa.ChunkedArray) -> Ints:
    numbers: Ints = column.fill_null(NONE).to_numpy() if column.null_count else column.to_numpy()
    return numbers
